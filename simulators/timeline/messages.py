"""The messages of a plan's transfers: what each member receives, in which order, and when it may send.

This is the engine's rule (`runtime.wire.transfer_pieces`), compiled for whole plans. A move of `plan.expansion` is cut
into pieces. A member takes its pieces in the order of rounds. It sends a piece when earlier rounds have delivered the
piece's range. Transfers over trees are in `waves`, gloo's own all-reduce in `native_ring`.
"""

from __future__ import annotations

from typing import NamedTuple

from autosync.simulators.jit import borrows_inner
from autosync.simulators.shared.arrays import Integers
from autosync.simulators.shared.size_exchange import SIZE_BYTES
from autosync.simulators.timeline.move_tables import MoveTables
from autosync.simulators.timeline.transfer_sizes import (
    GroupPlace,
    Messages,
    Workspace,
    bound_of,
    extent_of,
    num_members_of,
    num_pieces_of,
    range_of,
)


class _Arriving(NamedTuple):
    """The moves that arrive at a member, in the order of rounds, and where their pieces begin in its takes.

    `num_takes` is the number of its takes, and `pieces` has the number of pieces of each move of the template.
    """

    moves: Integers
    base: Integers
    num_takes: int
    pieces: Integers


@borrows_inner
def _came(group: GroupPlace, move: int) -> tuple[int, int]:
    """Return the range of elements of a move that arrives."""
    tables = group.tables
    return range_of(tables, group.sizes, group.number, group.template, tables.came_first[move], tables.came_last[move])


@borrows_inner
def fill_rounds(group: GroupPlace, space: Workspace, found: Messages) -> None:
    """Fill in the messages of one group."""
    tables, template = group.tables, group.template
    first_move, begins = tables.first_move[template], tables.first_channel[template]
    num_moves, num_channels = tables.first_move[template + 1] - first_move, tables.first_channel[template + 1] - begins
    for one in range(num_channels):
        space.counts[one] = 0
    for move in range(num_moves):
        channel = tables.move_channel[first_move + move]
        space.pieces[move] = num_pieces_of(tables, group.sizes, group.number, template, first_move + move)
        space.offset[move] = space.counts[channel]
        space.counts[channel] += space.pieces[move]
    for one in range(num_channels):
        channel = group.channel + one
        found.channel_source[channel] = group.part + tables.channel_source[begins + one]
        found.channel_destination[channel] = group.part + tables.channel_destination[begins + one]
        found.channel_hop[channel] = tables.channel_hop[begins + one]
        found.first_message[channel + 1] = found.first_message[channel] + space.counts[one]
    for member in range(num_members_of(tables, template)):
        slot = tables.first_member[template] + member
        moves = tables.arriving[tables.first_arriving[slot] : tables.first_arriving[slot + 1]]
        part = group.part + member
        num_takes = _take(group, moves, space, found.first_take[part], found)
        arriving = _Arriving(moves, space.base, num_takes, space.pieces)
        found.first_take[part + 1] = found.first_take[part] + num_takes
        found.breadth[part], found.num_first[part] = _breadth(tables, moves), _taken_before(tables, arriving, 0)
        leaving = tables.leaving[tables.first_leaving[slot] : tables.first_leaving[slot + 1]]
        _post(group, arriving, leaving, space, found, part)


@borrows_inner
def _breadth(tables: MoveTables, arriving: Integers) -> int:
    broadest, width, number = 1, 0, -1
    for move in arriving:
        width = width + 1 if tables.move_round[move] == number else 1
        number = tables.move_round[move]
        broadest = max(broadest, width if number >= 0 else 1)
    return broadest


@borrows_inner
def _take(group: GroupPlace, arriving: Integers, space: Workspace, first: int, found: Messages) -> int:
    """Fill in the takes of a member: round by round, piece by piece, alternating between sources.

    Returns their number; `space.base` has where each move's begin.
    """
    tables, place, at = group.tables, 0, 0
    first_move, item_bytes = tables.first_move[group.template], group.sizes.item_bytes[group.number]
    while at < len(arriving):
        until, longest = at, 0
        while until < len(arriving) and tables.move_round[arriving[until]] == tables.move_round[arriving[at]]:
            space.base[until] = place
            longest = max(longest, space.pieces[arriving[until] - first_move])
            until += 1
        for piece in range(longest):
            for position in range(at, until):
                move = arriving[position]
                count = space.pieces[move - first_move]
                if piece >= count:
                    continue
                start, stop = extent_of(group, move)
                size = SIZE_BYTES if tables.move_round[move] < 0 else (stop - start) * item_bytes / count
                channel, ordinal = group.channel + tables.move_channel[move], space.offset[move - first_move] + piece
                found.take_channel[first + place], found.take_ordinal[first + place] = channel, ordinal
                found.take_added_bytes[first + place] = size if tables.move_adds[move] else 0.0
                found.message_bytes[found.first_message[channel] + ordinal] = size
                place += 1
        at = until
    return place


@borrows_inner
def _post(  # noqa: PLR0917 - numba has no keywords
    group: GroupPlace, arriving: _Arriving, leaving: Integers, space: Workspace, found: Messages, part: int
) -> None:
    """Fill in after how many takes a member posts each message; for each destination in order."""
    tables, total = group.tables, 0
    first_move = tables.first_move[group.template]
    for one in range(tables.first_channel[group.template + 1] - tables.first_channel[group.template]):
        space.latest[one] = 0
    for move in leaving:
        start, stop = extent_of(group, move)
        count, to = space.pieces[move - first_move], tables.move_channel[move]
        # A round that exchanges sizes waits for everything that earlier rounds deliver.
        before = _taken_before(tables, arriving, min(tables.move_round[move], 0))
        space.latest[to] = max(space.latest[to], before)
        for piece in range(count):
            begin, end = start + bound_of(stop - start, count, piece), start + bound_of(stop - start, count, piece + 1)
            space.latest[to] = max(space.latest[to], _last_before(group, arriving, move, (begin, end)))
            space.after[total], space.of[total] = space.latest[to], group.channel + to
            total += 1
    post_after(space, total, arriving.num_takes, found, part)


@borrows_inner
def post_after(space: Workspace, total: int, num_takes: int, found: Messages, part: int) -> None:
    """Fill in a member's `total` posts: for each, after how many takes, and on which channel."""
    row = found.first_take[part] + part
    for step in range(num_takes + 1):
        space.posts[step] = 0
    for one in range(total):
        space.posts[space.after[one]] += 1
    begins = found.first_post[row]
    for step in range(num_takes + 1):
        space.place[step] = begins
        begins += space.posts[step]
        found.first_post[row + step + 1] = begins
    for one in range(total):
        found.post_channel[space.place[space.after[one]]] = space.of[one]
        space.place[space.after[one]] += 1
    found.num_posts[part] = total


@borrows_inner
def _taken_before(tables: MoveTables, arriving: _Arriving, number: int) -> int:
    """Return how many takes belong to rounds before this one."""
    position = 0
    while position < len(arriving.moves) and tables.move_round[arriving.moves[position]] < number:
        position += 1
    return int(arriving.base[position] if position < len(arriving.moves) else arriving.num_takes)


@borrows_inner
def _last_before(group: GroupPlace, arriving: _Arriving, leaves: int, elements: tuple[int, int]) -> int:
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
        count = arriving.pieces[move - tables.first_move[group.template]]
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
