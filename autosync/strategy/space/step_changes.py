"""Changes of one aspect of the whole step. Each returns None if it does not apply."""

from __future__ import annotations

import random
from dataclasses import replace

from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.editing import Room, with_messages, with_setting
from autosync.strategy.space.message_changes import can_be_sliced
from autosync.strategy.space.scheduling import use_order


def change_overlap(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Change the overlap."""
    found = [overlap for overlap in room.limits.overlaps if overlap != strategy.overlap]
    return replace(strategy, name="", overlap=rng.choice(found)) if found else None


def slice_all(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give every message that can be sliced the same slice size, or none."""
    size = rng.choice((None, *room.limits.slice_bytes))
    return with_messages(strategy, [replace(m, slice_bytes=size) if can_be_sliced(m) else m for m in strategy.messages])


def prioritise_by_use(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give all messages priorities by the order of their next use, or the same priority."""
    if room.choices.num_priorities == 1:
        return None
    uses = [min(room.variable_of(part).use for part in message.parts) for message in strategy.messages]
    levels = min(room.choices.num_priorities, len(uses)) if rng.random() < 0.75 else 1
    priorities = use_order(uses, levels)
    return with_messages(strategy, [replace(m, priority=p) for m, p in zip(strategy.messages, priorities, strict=True)])


def deal_lanes(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Deal messages in turn to a random number of lanes."""
    num_lanes = rng.randint(1, room.choices.num_lanes)
    ready = [min(room.variable_of(part).ready for part in message.parts) for message in strategy.messages]
    order = sorted(range(len(ready)), key=lambda position: ready[position])
    lane_of = {position: turn % num_lanes for turn, position in enumerate(order)}
    return with_messages(strategy, [replace(m, lane=lane_of[p]) for p, m in enumerate(strategy.messages)])


def reshape_all(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give one shape to every message that has a shape and whose codec allows this one."""
    shapes = {
        s.synchroniser.shape: None
        for settings in room.choices.dense.values()
        for s in settings
        if s.synchroniser.shape is not None
    }
    if not shapes:
        return None
    shape = rng.choice(list(shapes))
    return with_messages(strategy, [_reshaped(room, message, shape) for message in strategy.messages])


def _reshaped(room: Room, message: Message, shape: tuple[object, ...]) -> Message:
    synchroniser = message.synchroniser
    if synchroniser.shape is None:
        return message
    for setting in room.choices.dense[room.variable_of(message.parts[0]).dtype]:
        if (setting.kind, setting.codec, setting.synchroniser.shape) == (synchroniser.kind, message.codec, shape):
            return with_setting(message, setting)
    return message
