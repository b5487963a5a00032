"""Changes of one aspect of one message. Each returns None if it does not apply."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.choices import Setting
from autosync.strategy.space.editing import Room, must_be_alone, with_message, with_setting


def change_kind(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give one message another kind of synchroniser; its codec stays if the new kind allows it."""
    position, message = _any(strategy, rng)
    settings = [s for s in room.settings(message, strategy) if s.kind != message.synchroniser.kind]
    same = [setting for setting in settings if setting.codec == message.codec]
    found = same or [setting for setting in settings if setting.codec is None]
    if not found:
        return None
    # The kind is drawn first: there are so many servers that other kinds would hardly be drawn.
    kind = rng.choice(list(dict.fromkeys(setting.kind for setting in found)))
    chosen = rng.choice([setting for setting in found if setting.kind == kind])
    return with_message(strategy, position, with_setting(message, chosen))


def change_details(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Change other settings of one message's synchroniser: topology, update place, proxy, lag or period."""
    position, message = _any(strategy, rng)
    server = message.synchroniser.served_by
    found = [
        setting
        for setting in room.settings(message, strategy)
        if setting.kind == message.synchroniser.kind
        and setting.codec == message.codec
        and setting.synchroniser.served_by == server
        and setting.synchroniser != message.synchroniser
    ]
    return _with_any(strategy, position, message, found, rng)


def change_server(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Move one message to another server."""
    served = [p for p, m in enumerate(strategy.messages) if m.synchroniser.served_by is not None]
    if not served:
        return None
    position = rng.choice(served)
    message = strategy.messages[position]
    here, server = message.synchroniser, message.synchroniser.served_by
    assert server is not None, "only served messages are drawn"
    found = [
        setting
        for setting in room.settings(message, strategy)
        if setting.codec == message.codec and setting.synchroniser != here and setting.synchroniser.at(server) == here
    ]
    return _with_any(strategy, position, message, found, rng)


def change_codec(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Change the codec of one message."""
    position, message = _any(strategy, rng)
    found = [
        setting
        for setting in room.settings(message, strategy)
        if setting.synchroniser == message.synchroniser and setting.codec != message.codec
    ]
    return _with_any(strategy, position, message, found, rng)


def change_slices(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give one message another slice size, or none."""
    position, message = _any(strategy, rng)
    if not can_be_sliced(message):
        return None
    sizes = [size for size in (None, *room.limits.slice_bytes) if size != message.slice_bytes]
    return with_message(strategy, position, replace(message, slice_bytes=rng.choice(sizes))) if sizes else None


def change_priority(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give one message another priority, out of one level more than there are messages."""
    position, message = _any(strategy, rng)
    levels = min(room.choices.num_priorities, len(strategy.messages) + 1)
    found = [priority for priority in range(levels) if priority != message.priority]
    return with_message(strategy, position, replace(message, priority=rng.choice(found))) if found else None


def change_lane(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Move one message to another lane."""
    position, message = _any(strategy, rng)
    found = [lane for lane in range(room.choices.num_lanes) if lane != message.lane]
    return with_message(strategy, position, replace(message, lane=rng.choice(found))) if found else None


def can_be_sliced(message: Message) -> bool:
    """Whether a message may be sliced; rows, factors and PowerSGD's matrices travel whole."""
    return not must_be_alone(message) and (message.codec is None or message.codec.kind != "power_sgd")


def _any(strategy: Strategy, rng: random.Random) -> tuple[int, Message]:
    position = rng.randrange(len(strategy.messages))
    return position, strategy.messages[position]


def _with_any(
    strategy: Strategy, position: int, message: Message, found: Sequence[Setting], rng: random.Random
) -> Strategy | None:
    return with_message(strategy, position, with_setting(message, rng.choice(found))) if found else None
