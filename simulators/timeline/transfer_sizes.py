"""The sizes of transfers and of the pieces that the engine cuts their moves into. Compiled.

A *part* is one rank's part in a transfer. A *channel* carries the messages of a transfer from one member to another.
"""

from __future__ import annotations

from typing import NamedTuple

from autosync.simulators.jit import borrows_inner
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.size_exchange import CONTENT_BYTES
from autosync.simulators.timeline.move_tables import IN_WAVES, MoveTables

PIECE_BYTES, SHORT_PIECE_BYTES, WHOLE_BYTES = 2**19, 2**18, 2**16
"""The values of `runtime.wire.transfer_pieces`; a test keeps them equal."""
AHEAD_BYTES, FREE_AHEAD_BYTES, LEAST_AHEAD, NUM_FAVOURED = 2**18, 2**21, 3, 2
"""The values of `runtime.wire.flow_control` that limit how far ahead messages are requested."""


class Messages(NamedTuple):
    """All messages of a plan in one iteration.

    For each part: the messages that it takes, in order (`take_*` from `first_take[part]` on: the channel, the position
    in it, and the bytes to add up), and the channels on which it posts one more message each after that many takes
    (`post_channel` from `first_post[first_take[part] + part + takes]` on). `breadth` is the number of sources that it
    takes from at a time, or 0 for gloo's own collectives, which request two segments at a time. Until it has taken the
    first `num_first` messages it requests no others; these are the segments that gloo sums first, or the sizes of
    contents.

    For each channel: its parts, its `hop` (see `one_node`), and its messages' bytes from `first_message[channel]` on.
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
    channel_hop: Integers
    first_message: Integers
    message_bytes: Floats


class TransferSizes(NamedTuple):
    """For each operation: its shape in the tables, its buffer's elements, their bytes, and whether pieces are short."""

    shape: Integers
    num_elements: Integers
    item_bytes: Integers
    is_short: Flags
    first_part: Integers


class Workspace(NamedTuple):
    """Arrays for intermediate results, long enough for every group of a plan. Their contents mean nothing afterwards.

    By move of a template: `pieces` and `offset`. By channel of a template: `counts`, `latest` and `seen`. By arriving
    move: `base`. By message of a member: `after`, `of`, `posts` and `place`. By piece of a move over trees: `ordinal`
    and `taken`.
    """

    pieces: Integers
    offset: Integers
    counts: Integers
    latest: Integers
    seen: Integers
    base: Integers
    after: Integers
    of: Integers
    posts: Integers
    place: Integers
    ordinal: Integers
    taken: Integers


class GroupPlace(NamedTuple):
    """One group of an operation (`number`): its first part and its first channel."""

    tables: MoveTables
    sizes: TransferSizes
    number: int
    template: int
    part: int
    channel: int


@borrows_inner
def num_members_of(tables: MoveTables, template: int) -> int:
    return int(tables.first_member[template + 1] - tables.first_member[template])


@borrows_inner
def num_elements_of(tables: MoveTables, sizes: TransferSizes, number: int) -> int:
    """Return the elements of a buffer, or of one chunk of it after an outer split."""
    return int(-(-sizes.num_elements[number] // tables.outer[sizes.shape[number]]))


@borrows_inner
def num_bytes_of(tables: MoveTables, sizes: TransferSizes, number: int) -> int:
    return int(num_elements_of(tables, sizes, number) * sizes.item_bytes[number])


@borrows_inner
def bound_of(num_elements: int, num_chunks: int, chunk: int) -> int:
    """Return where a chunk begins, as in `expansion.chunk_bounds`."""
    size, extra = num_elements // num_chunks, num_elements % num_chunks
    return int(chunk * size + min(chunk, extra))


@borrows_inner
def range_of(  # noqa: PLR0917 - numba has no keywords
    tables: MoveTables, sizes: TransferSizes, number: int, template: int, first: int, last: int
) -> tuple[int, int]:
    """Return the range of elements of chunks. A chunk of a gather is a whole contribution."""
    num_elements = num_elements_of(tables, sizes, number)
    if tables.is_gather[template]:
        return first * num_elements, last * num_elements
    chunks = tables.num_chunks[template]
    return bound_of(num_elements, chunks, first), bound_of(num_elements, chunks, last)


@borrows_inner
def num_waves_of(tables: MoveTables, sizes: TransferSizes, number: int, template: int) -> int:
    """Return the number of pieces of the longest share of a transfer over trees."""
    unit = -(-num_elements_of(tables, sizes, number) // tables.num_chunks[template])
    num_bytes = unit * tables.widest[template] * sizes.item_bytes[number]
    return int(max(-(-num_bytes // SHORT_PIECE_BYTES), 2 if num_bytes > WHOLE_BYTES else 1))


@borrows_inner
def num_pieces_of(tables: MoveTables, sizes: TransferSizes, number: int, template: int, move: int) -> int:
    if tables.move_round[move] < 0:
        return int(sizes.item_bytes[number] == CONTENT_BYTES)
    start, stop = range_of(tables, sizes, number, template, tables.move_first[move], tables.move_last[move])
    num_bytes = (stop - start) * sizes.item_bytes[number]
    if num_bytes == 0:
        return 0
    if tables.is_whole[template]:
        return 1
    if tables.kind[template] == IN_WAVES:
        # Every share is cut into as many pieces as the longest one, unless it has fewer elements.
        return int(min(num_waves_of(tables, sizes, number, template), stop - start))
    longest = SHORT_PIECE_BYTES if sizes.is_short[number] else PIECE_BYTES
    return int(max(-(-num_bytes // longest), 2 if num_bytes > WHOLE_BYTES else 1))


@borrows_inner
def extent_of(group: GroupPlace, move: int) -> tuple[int, int]:
    tables = group.tables
    return range_of(tables, group.sizes, group.number, group.template, tables.move_first[move], tables.move_last[move])
