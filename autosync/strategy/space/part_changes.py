"""Changes of a variable's cut, and of the parts that travel together. Each returns None if it does not apply."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from autosync.specs.model import Variable
from autosync.strategy.parts import Partition, PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.cutting import axes_to_cut, draw_partition
from autosync.strategy.space.editing import Room, may_be_cut, must_be_alone, with_messages

P_UNCUT = 0.3
P_UNEVEN = 0.3
P_FEW_PARTS = 0.5


def change_cut(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Cut one variable, cut it differently, or make it whole.

    The new parts are dealt in turn to the messages that held the old parts. If only one message held them, each part
    but the first gets its own copy of that message.
    """
    found = [v for v in room.variables.values() if v.name in strategy.partitions or _can_be_cut(room, v)]
    if not found:
        return None
    # Large variables are drawn more often, because their cuts matter more.
    variable = rng.choices(found, [v.num_bytes**0.5 for v in found])[0]
    old = strategy.partitions.get(variable.name)
    homes = _homes(strategy, variable.name)
    if not all(may_be_cut(strategy.messages[position]) for position in homes):
        return None
    if old is not None and (not _can_be_cut(room, variable) or rng.random() < P_UNCUT):
        return _recut(strategy, variable.name, None, homes)
    most = min(room.limits.max_parts, max(variable.shape))
    wanted = rng.randint(2, min(4, most)) if rng.random() < P_FEW_PARTS else rng.randint(2, most)
    new = draw_partition(
        rng, variable, wanted_parts=wanted, p_uneven=P_UNEVEN, bandwidths=room.bandwidths, limits=room.limits
    )
    return None if new == old else _recut(strategy, variable.name, new, homes)


def _can_be_cut(room: Room, variable: Variable) -> bool:
    return room.choices.can_cut and bool(axes_to_cut(variable))


def _homes(strategy: Strategy, variable: str) -> list[int]:
    """Return the positions of the messages that hold parts of a variable, in the order of the parts."""
    found: dict[int, int] = {}
    for position, message in enumerate(strategy.messages):
        for part in message.parts:
            name = PartName.parse(part)
            if name.variable == variable:
                found[position] = min(name.index, found.get(position, name.index))
    return sorted(found, key=lambda position: found[position])


def _recut(strategy: Strategy, variable: str, partition: Partition | None, homes: list[int]) -> Strategy:
    partitions = dict(strategy.partitions)
    partitions.pop(variable, None)
    names = [variable]
    if partition is not None:
        partitions[variable] = partition
        names = [f"{variable}[{index}]" for index in range(len(partition.sizes))]
    # The parts of a variable from one message spread over copies of it, because parts in one message are joined again.
    spreads = len(homes) == 1
    joins: dict[int, list[str]] = {position: [] for position in homes}
    more: list[Message] = []
    for index, name in enumerate(names):
        home = homes[index % len(homes)]
        if index >= len(homes) and (spreads or must_be_alone(strategy.messages[home])):
            more.append(replace(strategy.messages[home], parts=(name,)))
        else:
            joins[home].append(name)
    messages = [
        _with_parts(message, variable, joins[position]) if position in joins else message
        for position, message in enumerate(strategy.messages)
    ]
    recut = replace(strategy, partitions=partitions)
    return with_messages(recut, [message for message in messages if message is not None] + more)


def _with_parts(message: Message, variable: str, joining: list[str]) -> Message | None:
    parts = [part for part in message.parts if PartName.parse(part).variable != variable]
    return replace(message, parts=(*parts, *joining)) if parts or joining else None


def move_part(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Move one part to another message with the same dtype, synchroniser and codec."""
    groups = _groups(room, strategy)
    found = [group for group in groups.values() if len(group) > 1]
    if not found:
        return None
    source, target = rng.sample(rng.choice(found), 2)
    parts = list(strategy.messages[source].parts)
    moved = parts.pop(rng.randrange(len(parts)))
    messages = list(strategy.messages)
    messages[target] = replace(messages[target], parts=(*messages[target].parts, moved))
    if parts:
        messages[source] = replace(messages[source], parts=tuple(parts))
    else:
        del messages[source]
    return with_messages(strategy, messages)


def join_messages(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Join two messages with the same dtype, synchroniser and codec that follow one another in ready order."""
    groups = _groups(room, strategy)
    found = [group for group in groups.values() if len(group) > 1]
    if not found:
        return None
    group = rng.choice(found)
    group = sorted(group, key=lambda position: _ready(room, strategy.messages[position]))
    index = rng.randrange(len(group) - 1)
    kept, taken = group[index], group[index + 1]
    messages = list(strategy.messages)
    messages[kept] = replace(messages[kept], parts=messages[kept].parts + messages[taken].parts)
    del messages[taken]
    return with_messages(strategy, messages)


def split_message(room: Room, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Split one message in two: the parts that are ready first, and the rest."""
    found = [position for position, message in enumerate(strategy.messages) if len(message.parts) > 1]
    if not found:
        return None
    position = rng.choice(found)
    message = strategy.messages[position]
    parts = sorted(message.parts, key=lambda part: (room.variable_of(part).ready, PartName.parse(part).index))
    bound = rng.randrange(1, len(parts))
    messages = list(strategy.messages)
    messages[position] = replace(message, parts=tuple(parts[:bound]))
    messages.append(replace(message, parts=tuple(parts[bound:])))
    return with_messages(strategy, messages)


def _groups(room: Room, strategy: Strategy) -> Mapping[object, list[int]]:
    """Return groups of messages among which parts may move: those with the same dtype, synchroniser and codec."""
    groups: dict[object, list[int]] = {}
    for position, message in enumerate(strategy.messages):
        if not must_be_alone(message):
            dtype = room.variable_of(message.parts[0]).dtype
            groups.setdefault((dtype, message.synchroniser, message.codec), []).append(position)
    return groups


def _ready(room: Room, message: Message) -> tuple[int, int]:
    return min((room.variable_of(part).ready, PartName.parse(part).index) for part in message.parts)
