"""The messages of transfers over trees: in wave w, the moves of round r carry their piece w - r. Compiled.

This is the engine's rule (`runtime.wire.transfer_pieces`). All moves of a share carry the same range in the same
pieces, so a piece can be sent when the same piece has arrived from all ranks below, or from above.
"""

from __future__ import annotations

from typing import NamedTuple

from autosync.simulators.jit import borrows_inner
from autosync.simulators.shared.arrays import Integers
from autosync.simulators.timeline.messages import post_after
from autosync.simulators.timeline.move_tables import MoveTables
from autosync.simulators.timeline.transfer_sizes import (
    GroupPlace,
    Messages,
    Workspace,
    extent_of,
    num_members_of,
    num_pieces_of,
    num_waves_of,
)


class _Waves(NamedTuple):
    """The pieces of a group's moves, numbered from its template's first.

    `pieces` has the number of pieces of each move, and `ordinal` the position of piece p of move m in its channel, at
    m * `most` + p.
    """

    first_move: int
    most: int
    num_waves: int
    pieces: Integers
    ordinal: Integers


@borrows_inner
def fill_waves(group: GroupPlace, space: Workspace, found: Messages) -> None:
    """Fill in the messages of one group."""
    tables, template = group.tables, group.template
    begins = tables.first_channel[template]
    num_channels = tables.first_channel[template + 1] - begins
    waves = _waves(group, space, num_channels)
    for one in range(num_channels):
        channel = group.channel + one
        found.channel_source[channel] = group.part + tables.channel_source[begins + one]
        found.channel_destination[channel] = group.part + tables.channel_destination[begins + one]
        found.channel_hop[channel] = tables.channel_hop[begins + one]
        found.first_message[channel + 1] = found.first_message[channel] + space.counts[one]
    for member in range(num_members_of(tables, template)):
        slot = tables.first_member[template] + member
        arriving = tables.arriving[tables.first_arriving[slot] : tables.first_arriving[slot + 1]]
        leaving = tables.leaving[tables.first_leaving[slot] : tables.first_leaving[slot + 1]]
        part = group.part + member
        num_takes = _take(group, waves, arriving, space.taken, found, part)
        found.first_take[part + 1] = found.first_take[part] + num_takes
        found.breadth[part] = _breadth(tables, waves, arriving, space.seen, num_channels)
        _post(group, waves, arriving, leaving, space, num_takes, found, part)


@borrows_inner
def _waves(group: GroupPlace, space: Workspace, num_channels: int) -> _Waves:
    """Return the pieces of a group's moves, and count the messages of its channels."""
    tables, first_move = group.tables, group.tables.first_move[group.template]
    num_moves = tables.first_move[group.template + 1] - first_move
    most = num_waves_of(tables, group.sizes, group.number, group.template)
    count = most + tables.move_round[first_move + num_moves - 1]
    for one in range(num_channels):
        space.counts[one] = 0
    for move in range(num_moves):
        space.pieces[move] = num_pieces_of(tables, group.sizes, group.number, group.template, first_move + move)
    for wave in range(count):
        for move in range(num_moves):
            piece = wave - tables.move_round[first_move + move]
            if 0 <= piece < space.pieces[move]:
                channel = tables.move_channel[first_move + move]
                space.ordinal[move * most + piece] = space.counts[channel]
                space.counts[channel] += 1
    return _Waves(first_move, most, count, space.pieces, space.ordinal)


@borrows_inner
def _take(  # noqa: PLR0917 - numba has no keywords
    group: GroupPlace, waves: _Waves, arriving: Integers, taken: Integers, found: Messages, part: int
) -> int:
    """Fill in a member's takes, and in `taken` the take of each piece; return their number."""
    tables, first, place = group.tables, found.first_take[part], 0
    item_bytes = group.sizes.item_bytes[group.number]
    for one in range(len(arriving) * waves.most):
        taken[one] = -1
    for wave in range(waves.num_waves):
        for position, move in enumerate(arriving):
            piece, number = wave - tables.move_round[move], move - waves.first_move
            if not 0 <= piece < waves.pieces[number]:
                continue
            start, stop = extent_of(group, move)
            size = (stop - start) * item_bytes / waves.pieces[number]
            channel, ordinal = group.channel + tables.move_channel[move], waves.ordinal[number * waves.most + piece]
            found.take_channel[first + place], found.take_ordinal[first + place] = channel, ordinal
            found.take_added_bytes[first + place] = size if tables.move_adds[move] else 0.0
            found.message_bytes[found.first_message[channel] + ordinal] = size
            taken[position * waves.most + piece] = place
            place += 1
    return place


@borrows_inner
def _breadth(tables: MoveTables, waves: _Waves, arriving: Integers, seen: Integers, num_channels: int) -> int:
    """Return the most members that pieces of one wave come from; 1 if nothing comes."""
    broadest = 1
    for one in range(num_channels):
        seen[one] = -1
    for wave in range(waves.num_waves):
        width = 0
        for move in arriving:
            channel = tables.move_channel[move]
            if 0 <= wave - tables.move_round[move] < waves.pieces[move - waves.first_move] and seen[channel] != wave:
                seen[channel] = wave
                width += 1
        broadest = max(broadest, width)
    return broadest


@borrows_inner
def _post(  # noqa: PLR0917 - numba has no keywords
    group: GroupPlace,
    waves: _Waves,
    arriving: Integers,
    leaving: Integers,
    space: Workspace,
    num_takes: int,
    found: Messages,
    part: int,
) -> None:
    """Fill in after how many takes a member posts each message; for each destination in order."""
    tables, total = group.tables, 0
    for one in range(tables.first_channel[group.template + 1] - tables.first_channel[group.template]):
        space.latest[one] = 0
    for wave in range(waves.num_waves):
        for move in leaving:
            piece, to = wave - tables.move_round[move], tables.move_channel[move]
            if 0 <= piece < waves.pieces[move - waves.first_move]:
                before = _last_before(tables, waves, arriving, space.taken, move, piece)
                space.latest[to] = max(space.latest[to], before)
                space.after[total], space.of[total] = space.latest[to], group.channel + to
                total += 1
    post_after(space, total, num_takes, found, part)


@borrows_inner
def _last_before(  # noqa: PLR0917 - numba has no keywords
    tables: MoveTables, waves: _Waves, arriving: Integers, taken: Integers, leaves: int, piece: int
) -> int:
    """Return the last take, counted from 1, that delivers a share's piece in an earlier round; 0 if there is none."""
    last = 0
    for position in range(len(arriving)):
        move = arriving[position]
        is_same = tables.move_first[move] == tables.move_first[leaves]
        if is_same and tables.move_round[move] < tables.move_round[leaves]:
            last = max(last, taken[position * waves.most + piece] + 1)
    return int(last)
