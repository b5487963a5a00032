"""The messages of a plan's transfers: what each member receives, in which order, and when it may send.

This is the engine's rule (`runtime.wire.transfer_pieces`), compiled for whole plans. A move of `plan.expansion` is cut
into pieces. A member takes its pieces in the order of rounds. It sends a piece when earlier rounds have delivered the
piece's range. Transfers over trees are in `waves`, gloo's own all-reduce in `native_ring`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.jit import borrows_inner, inner
from autosync.simulators.shared.arrays import Integers
from autosync.simulators.shared.size_exchange import SIZE_BYTES
from autosync.simulators.timeline.move_tables import MoveTables
from autosync.simulators.timeline.transfer_sizes import (
    GroupPlace,
    Messages,
    bound_of,
    extent_of,
    num_members_of,
    num_pieces_of,
    range_of,
)


class _Cuts(NamedTuple):
    """For each move of a template: its number of pieces, and the position of the first one in its channel."""

    pieces: Integers
    offset: Integers


class _Arriving(NamedTuple):
    """The moves that arrive at a member, in the order of rounds, and where their pieces begin and end in its takes."""

    moves: Integers
    base: Integers


@borrows_inner
def _came(group: GroupPlace, move: int) -> tuple[int, int]:
    """Return the range of elements of a move that arrives."""
    tables = group.tables
    return range_of(tables, group.sizes, group.number, group.template, tables.came_first[move], tables.came_last[move])


@inner
def fill_rounds(group: GroupPlace, found: Messages) -> None:
    """Fill in the messages of one group."""
    tables, template = group.tables, group.template
    first_move, begins = tables.first_move[template], tables.first_channel[template]
    num_moves, num_channels = tables.first_move[template + 1] - first_move, tables.first_channel[template + 1] - begins
    cuts, counts = _Cuts(np.empty(num_moves, np.int64), np.empty(num_moves, np.int64)), np.zeros(num_channels, np.int64)
    for move in range(num_moves):
        cuts.pieces[move] = num_pieces_of(tables, group.sizes, group.number, template, first_move + move)
        cuts.offset[move] = counts[tables.move_channel[first_move + move]]
        counts[tables.move_channel[first_move + move]] += cuts.pieces[move]
    for one in range(num_channels):
        channel = group.channel + one
        found.channel_source[channel] = group.part + tables.channel_source[begins + one]
        found.channel_destination[channel] = group.part + tables.channel_destination[begins + one]
        found.channel_hop[channel] = tables.channel_hop[begins + one]
        found.first_message[channel + 1] = found.first_message[channel] + counts[one]
    for member in range(num_members_of(tables, template)):
        slot = tables.first_member[template] + member
        moves = tables.arriving[tables.first_arriving[slot] : tables.first_arriving[slot + 1]]
        part = group.part + member
        arriving = _take(group, moves, cuts, found.first_take[part], found)
        found.first_take[part + 1] = found.first_take[part] + arriving.base[-1]
        found.breadth[part], found.num_first[part] = _breadth(tables, moves), _taken_before(tables, arriving, 0)
        leaving = tables.leaving[tables.first_leaving[slot] : tables.first_leaving[slot + 1]]
        _post(group, arriving, leaving, cuts, found, part)


@borrows_inner
def _breadth(tables: MoveTables, arriving: Integers) -> int:
    broadest, width, number = 1, 0, -1
    for move in arriving:
        width = width + 1 if tables.move_round[move] == number else 1
        number = tables.move_round[move]
        broadest = max(broadest, width if number >= 0 else 1)
    return broadest


@inner
def _take(group: GroupPlace, arriving: Integers, cuts: _Cuts, first: int, found: Messages) -> _Arriving:
    """Fill in the takes of a member: round by round, piece by piece, alternating between sources."""
    tables, place, at = group.tables, 0, 0
    first_move, item_bytes = tables.first_move[group.template], group.sizes.item_bytes[group.number]
    base = np.zeros(len(arriving) + 1, np.int64)
    while at < len(arriving):
        until, longest = at, 0
        while until < len(arriving) and tables.move_round[arriving[until]] == tables.move_round[arriving[at]]:
            base[until] = place
            longest = max(longest, cuts.pieces[arriving[until] - first_move])
            until += 1
        for piece in range(longest):
            for position in range(at, until):
                move = arriving[position]
                count = cuts.pieces[move - first_move]
                if piece >= count:
                    continue
                start, stop = extent_of(group, move)
                size = SIZE_BYTES if tables.move_round[move] < 0 else (stop - start) * item_bytes / count
                channel, ordinal = group.channel + tables.move_channel[move], cuts.offset[move - first_move] + piece
                found.take_channel[first + place], found.take_ordinal[first + place] = channel, ordinal
                found.take_added_bytes[first + place] = size if tables.move_adds[move] else 0.0
                found.message_bytes[found.first_message[channel] + ordinal] = size
                place += 1
        at = until
    base[len(arriving)] = place
    return _Arriving(arriving, base)


@inner
def _post(group: GroupPlace, arriving: _Arriving, leaving: Integers, cuts: _Cuts, found: Messages, part: int) -> None:  # noqa: PLR0917 - numba has no other
    """Fill in after how many takes a member posts each message; for each destination in order."""
    tables, num_takes, total, at = group.tables, arriving.base[-1], 0, 0
    first_move = tables.first_move[group.template]
    for move in leaving:
        total += cuts.pieces[move - first_move]
    after, of = np.empty(total, np.int64), np.empty(total, np.int64)
    latest = np.zeros(tables.first_channel[group.template + 1] - tables.first_channel[group.template], np.int64)
    for move in leaving:
        start, stop = extent_of(group, move)
        count, to = cuts.pieces[move - first_move], tables.move_channel[move]
        # A round that exchanges sizes waits for everything that earlier rounds deliver.
        latest[to] = max(latest[to], _taken_before(tables, arriving, min(tables.move_round[move], 0)))
        for piece in range(count):
            begin, end = start + bound_of(stop - start, count, piece), start + bound_of(stop - start, count, piece + 1)
            latest[to] = max(latest[to], _last_before(group, arriving, cuts, move, (begin, end)))
            after[at], of[at] = latest[to], group.channel + to
            at += 1
    post_after(after, of, num_takes, found, part)


@inner
def post_after(after: Integers, of: Integers, num_takes: int, found: Messages, part: int) -> None:
    """Fill in a member's posts: for each, after how many takes, and on which channel."""
    row, total = found.first_take[part] + part, len(after)
    counts, place = np.zeros(num_takes + 1, np.int64), np.empty(num_takes + 1, np.int64)
    for one in range(total):
        counts[after[one]] += 1
    begins = found.first_post[row]
    for step in range(num_takes + 1):
        place[step] = begins
        begins += counts[step]
        found.first_post[row + step + 1] = begins
    for one in range(total):
        found.post_channel[place[after[one]]] = of[one]
        place[after[one]] += 1
    found.num_posts[part] = total


@borrows_inner
def _taken_before(tables: MoveTables, arriving: _Arriving, number: int) -> int:
    """Return how many takes belong to rounds before this one."""
    position = 0
    while position < len(arriving.moves) and tables.move_round[arriving.moves[position]] < number:
        position += 1
    return int(arriving.base[position])


@borrows_inner
def _last_before(group: GroupPlace, arriving: _Arriving, cuts: _Cuts, leaves: int, elements: tuple[int, int]) -> int:
    """Return the last take, counted from 1, that delivers to these elements in an earlier round; 0 if there is none."""
    tables, last, in_round = group.tables, 0, -1
    begin, end = elements
    for position in range(len(arriving.moves) - 1, -1, -1):
        move = arriving.moves[position]
        number = tables.move_round[move]
        if number >= tables.move_round[leaves]:
            continue
        if last > 0 and number != in_round:
            return last
        start, stop = _came(group, move)
        if start >= end or begin >= stop:
            continue
        count = cuts.pieces[move - tables.first_move[group.template]]
        element = min(end, stop) - 1 - start
        size, extra = (stop - start) // count, (stop - start) % count
        piece = element // (size + 1)
        if element >= extra * (size + 1):
            piece = extra + (element - extra * (size + 1)) // max(1, size)
        width, place = _among(tables, arriving.moves, position)
        last = max(last, arriving.base[position] + piece * width + place + 1)
        in_round = number
    return last


@borrows_inner
def _among(tables: MoveTables, moves: Integers, position: int) -> tuple[int, int]:
    """Return how many moves arrive in the move's round, and the move's position among them."""
    first, last = position, position + 1
    while first > 0 and tables.move_round[moves[first - 1]] == tables.move_round[moves[position]]:
        first -= 1
    while last < len(moves) and tables.move_round[moves[last]] == tables.move_round[moves[position]]:
        last += 1
    return last - first, position - first
