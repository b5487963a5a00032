"""The messages of a plan's transfers: what each member receives, in which order, and when it may send.

This is the engine's rule (`runtime.wire.transfer_pieces`), compiled for whole plans. A move of `plan.expansion` is cut
into pieces. A member takes its pieces in the order of rounds. It sends a piece when earlier rounds have delivered the
piece's range. gloo's own all-reduce is a ring that sends two segments at a time (NATIVE RING).

A *part* is one rank's part in a transfer. A *channel* carries the messages of a transfer from one member to another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.jit import borrows_inner, inner
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.size_exchange import CONTENT_BYTES, SIZE_BYTES
from autosync.simulators.timeline.move_tables import NATIVE_RING, MoveTables

PIECE_BYTES, SHORT_PIECE_BYTES, WHOLE_BYTES = 2**19, 2**18, 2**16
"""The values of `runtime.wire.transfer_pieces`; a test keeps them equal."""
AHEAD_BYTES, FREE_AHEAD_BYTES, LEAST_AHEAD, NUM_FAVOURED = 2**18, 2**21, 3, 2
"""The values of `runtime.wire.flow_control` that limit how far ahead messages are requested."""
SEGMENT_BYTES = 2**20
"""The segment size of gloo's own all-reduce."""


class Messages(NamedTuple):
    """All messages of a plan in one iteration.

    For each part: the messages that it takes, in order (`take_*` from `first_take[part]` on: the channel, the position
    in it, and the bytes to add up), and the channels on which it posts one more message each after that many takes
    (`post_channel` from `first_post[first_take[part] + part + takes]` on). `breadth` is the number of sources that it
    takes from at a time, or 0 for gloo's own collectives, which request two segments at a time. Until it has taken the
    first `num_first` messages it requests no others; these are the segments that gloo sums first, or the sizes of
    contents.

    For each channel: its parts, and its messages' bytes from `first_message[channel]` on.
    """

    first_take: Integers
    take_channel: Integers
    take_ordinal: Integers
    take_added_bytes: Floats
    first_post: Integers
    post_channel: Integers
    num_posts: Integers
    breadth: Integers
    num_first: Integers
    channel_source: Integers
    channel_destination: Integers
    first_message: Integers
    message_bytes: Floats


class TransferSizes(NamedTuple):
    """For each operation: its shape in the tables, its buffer's elements, their bytes, and whether pieces are short."""

    shape: Integers
    num_elements: Integers
    item_bytes: Integers
    is_short: Flags
    first_part: Integers


class _GroupPlace(NamedTuple):
    """One group of an operation (`number`): its first part and its first channel."""

    tables: MoveTables
    sizes: TransferSizes
    number: int
    template: int
    part: int
    channel: int


class _Cuts(NamedTuple):
    """For each move of a template: its number of pieces, and the position of the first one in its channel."""

    pieces: Integers
    offset: Integers


class _Arriving(NamedTuple):
    """The moves that arrive at a member, in the order of rounds, and where their pieces begin and end in its takes."""

    moves: Integers
    base: Integers


@inner
def fill_all(tables: MoveTables, sizes: TransferSizes, number: int, channel: int, found: Messages) -> None:
    """Fill in the messages of all groups of an operation."""
    shape, part = sizes.shape[number], sizes.first_part[number]
    for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
        size, template = tables.group_first[group + 1] - tables.group_first[group], tables.template[group]
        if tables.first_move[template] == tables.first_move[template + 1]:
            fill_nothing(part, size, found)
        elif tables.kind[template] == NATIVE_RING:
            _fill_ring(_GroupPlace(tables, sizes, number, template, part, channel), found)
        else:
            _fill(_GroupPlace(tables, sizes, number, template, part, channel), found)
        part += size
        channel += tables.first_channel[template + 1] - tables.first_channel[template]


@borrows_inner
def fill_nothing(part: int, size: int, found: Messages) -> None:
    for one in range(part, part + size):
        found.first_take[one + 1] = found.first_take[one]
        found.first_post[found.first_take[one] + one + 1] = found.first_post[found.first_take[one] + one]


@borrows_inner
def num_channels_of(tables: MoveTables, shape: int) -> int:
    """Return the number of channels of all groups of a transfer."""
    num_channels = 0
    for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
        template = tables.template[group]
        num_channels += tables.first_channel[template + 1] - tables.first_channel[template]
    return num_channels


@borrows_inner
def count(tables: MoveTables, sizes: TransferSizes) -> tuple[int, int, int]:
    num_parts, num_channels, num_messages = 0, 0, 0
    for number, shape in enumerate(sizes.shape):
        first, last = tables.first_group[shape], tables.first_group[shape + 1]
        num_parts += tables.group_first[last] - tables.group_first[first]
        if not tables.has_messages[shape]:
            continue
        num_channels += num_channels_of(tables, shape)
        for group in range(first, last):
            template = tables.template[group]
            for move in range(tables.first_move[template], tables.first_move[template + 1]):
                if tables.kind[template] == NATIVE_RING:
                    num_messages += 2 * _num_received(_num_bytes(tables, sizes, number), tables.num_chunks[template])
                else:
                    num_messages += _num_pieces(tables, sizes, number, template, move)
    return num_parts, num_channels, num_messages


@borrows_inner
def _num_members(tables: MoveTables, template: int) -> int:
    return int(tables.first_member[template + 1] - tables.first_member[template])


@borrows_inner
def _num_elements(tables: MoveTables, sizes: TransferSizes, number: int) -> int:
    """Return the elements of a buffer, or of one chunk of it after an outer split."""
    return int(-(-sizes.num_elements[number] // tables.outer[sizes.shape[number]]))


@borrows_inner
def _num_bytes(tables: MoveTables, sizes: TransferSizes, number: int) -> int:
    return int(_num_elements(tables, sizes, number) * sizes.item_bytes[number])


@borrows_inner
def _bound(num_elements: int, num_chunks: int, chunk: int) -> int:
    """Return where a chunk begins, as in `expansion.chunk_bounds`."""
    size, extra = num_elements // num_chunks, num_elements % num_chunks
    return int(chunk * size + min(chunk, extra))


@borrows_inner
def _range(  # noqa: PLR0917 - numba has no keywords
    tables: MoveTables, sizes: TransferSizes, number: int, template: int, first: int, last: int
) -> tuple[int, int]:
    """Return the range of elements of chunks. A chunk of a gather is a whole contribution."""
    num_elements = _num_elements(tables, sizes, number)
    if tables.is_gather[template]:
        return first * num_elements, last * num_elements
    chunks = tables.num_chunks[template]
    return _bound(num_elements, chunks, first), _bound(num_elements, chunks, last)


@borrows_inner
def _num_pieces(tables: MoveTables, sizes: TransferSizes, number: int, template: int, move: int) -> int:
    if tables.move_round[move] < 0:
        return int(sizes.item_bytes[number] == CONTENT_BYTES)
    start, stop = _range(tables, sizes, number, template, tables.move_first[move], tables.move_last[move])
    num_bytes = (stop - start) * sizes.item_bytes[number]
    if num_bytes == 0:
        return 0
    if tables.is_whole[template]:
        return 1
    longest = SHORT_PIECE_BYTES if sizes.is_short[number] else PIECE_BYTES
    return int(max(-(-num_bytes // longest), 2 if num_bytes > WHOLE_BYTES else 1))


@borrows_inner
def _extent(group: _GroupPlace, move: int) -> tuple[int, int]:
    tables = group.tables
    return _range(tables, group.sizes, group.number, group.template, tables.move_first[move], tables.move_last[move])


@borrows_inner
def _came(group: _GroupPlace, move: int) -> tuple[int, int]:
    """Return the range of elements of a move that arrives."""
    tables = group.tables
    return _range(tables, group.sizes, group.number, group.template, tables.came_first[move], tables.came_last[move])


@inner
def _fill(group: _GroupPlace, found: Messages) -> None:
    """Fill in the messages of one group."""
    tables, template = group.tables, group.template
    first_move, begins = tables.first_move[template], tables.first_channel[template]
    num_moves, num_channels = tables.first_move[template + 1] - first_move, tables.first_channel[template + 1] - begins
    cuts, counts = _Cuts(np.empty(num_moves, np.int64), np.empty(num_moves, np.int64)), np.zeros(num_channels, np.int64)
    for move in range(num_moves):
        cuts.pieces[move] = _num_pieces(tables, group.sizes, group.number, template, first_move + move)
        cuts.offset[move] = counts[tables.move_channel[first_move + move]]
        counts[tables.move_channel[first_move + move]] += cuts.pieces[move]
    for one in range(num_channels):
        channel = group.channel + one
        found.channel_source[channel] = group.part + tables.channel_source[begins + one]
        found.channel_destination[channel] = group.part + tables.channel_destination[begins + one]
        found.first_message[channel + 1] = found.first_message[channel] + counts[one]
    for member in range(_num_members(tables, template)):
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
def _take(group: _GroupPlace, arriving: Integers, cuts: _Cuts, first: int, found: Messages) -> _Arriving:
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
                start, stop = _extent(group, move)
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
def _post(group: _GroupPlace, arriving: _Arriving, leaving: Integers, cuts: _Cuts, found: Messages, part: int) -> None:  # noqa: PLR0917 - numba has no other
    """Fill in after how many takes a member posts each message; for each destination in order."""
    tables, num_takes, total, at = group.tables, arriving.base[-1], 0, 0
    first_move = tables.first_move[group.template]
    for move in leaving:
        total += cuts.pieces[move - first_move]
    after, of = np.empty(total, np.int64), np.empty(total, np.int64)
    latest = np.zeros(tables.first_channel[group.template + 1] - tables.first_channel[group.template], np.int64)
    for move in leaving:
        start, stop = _extent(group, move)
        count, to = cuts.pieces[move - first_move], tables.move_channel[move]
        # A round that exchanges sizes waits for everything that earlier rounds deliver.
        latest[to] = max(latest[to], _taken_before(tables, arriving, min(tables.move_round[move], 0)))
        for piece in range(count):
            begin, end = start + _bound(stop - start, count, piece), start + _bound(stop - start, count, piece + 1)
            latest[to] = max(latest[to], _last_before(group, arriving, cuts, move, (begin, end)))
            after[at], of[at] = latest[to], group.channel + to
            at += 1
    row = found.first_take[part] + part
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
def _last_before(group: _GroupPlace, arriving: _Arriving, cuts: _Cuts, leaves: int, elements: tuple[int, int]) -> int:
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


# NATIVE RING. In contrast to the engine's own ring, every member sends to the one before it. gloo cuts the buffer into
# segments of at most 1 MiB, the same number for each member and at least two. Each of its two phases sends and receives
# all segments except those of one member. In each phase two segments are on their way at a time, and the second phase
# begins when the first has ended.


@borrows_inner
def _num_received(num_bytes: int, num_members: int) -> int:
    """Return the number of segments that a member receives in each phase."""
    segments = max(-(-num_bytes // SEGMENT_BYTES), 2 * num_members)
    per_member = -(-segments // num_members)
    return int(per_member * (num_members - 1))


@borrows_inner
def _fill_ring(group: _GroupPlace, found: Messages) -> None:
    num_members = _num_members(group.tables, group.template)
    num_bytes = _num_bytes(group.tables, group.sizes, group.number)
    in_ring = group.tables.num_chunks[group.template]
    received = _num_received(num_bytes, in_ring)
    size = num_bytes * (in_ring - 1) / in_ring / received
    for member in range(num_members):
        channel = group.channel + member
        found.channel_source[channel] = group.part + member
        found.channel_destination[channel] = group.part + (member - 1) % num_members
        found.first_message[channel + 1] = found.first_message[channel] + 2 * received
        found.message_bytes[found.first_message[channel] : found.first_message[channel + 1]] = size
    for member in range(num_members):
        part = group.part + member
        first = found.first_take[part]
        source = group.channel + (member + 1) % num_members
        found.first_take[part + 1] = first + 2 * received
        found.num_posts[part], found.num_first[part] = 2 * received, received
        row = first + part
        posted = found.first_post[row]
        for step in range(2 * received + 1):
            if step < 2 * received:
                found.take_channel[first + step], found.take_ordinal[first + step] = source, step
                found.take_added_bytes[first + step] = size if step < received else 0.0
            until = min(received, step + 2) if step < received else min(2 * received, step + 2)
            while posted - found.first_post[row] < until:
                found.post_channel[posted] = group.channel + member
                posted += 1
            found.first_post[row + step + 1] = posted
