"""The messages of a whole plan. Operations with equal shape and size have the same ones, made only once. Compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.first_calls import FIRST_CALLS
from autosync.simulators.jit import borrows_elements, borrows_inner
from autosync.simulators.shared.arrays import Integers
from autosync.simulators.timeline.messages import fill_rounds
from autosync.simulators.timeline.move_tables import IN_WAVES, NATIVE_RING, MoveTables
from autosync.simulators.timeline.native_ring import fill_ring, num_received
from autosync.simulators.timeline.transfer_sizes import (
    GroupPlace,
    Messages,
    TransferSizes,
    Workspace,
    num_bytes_of,
    num_pieces_of,
    num_waves_of,
)
from autosync.simulators.timeline.waves import fill_waves

_MOST_IN_PYTHON = 25_000
"""The most messages of a plan that Python simulates while the kernel is being compiled: in 6 to 23 seconds."""


class _KnownMessages(NamedTuple):
    """A hash table of operations, by shape and size, whose messages exist (-1: empty), with their first channels."""

    table: Integers
    first_channel: Integers


def messages_of(tables: MoveTables, sizes: TransferSizes) -> Messages:
    """Return the messages of operations. Parts of local work have none.

    They are counted, then arrays are made, and then these are filled in: numba compiles for far longer where a function
    makes arrays itself.
    """
    num_parts, num_operations = int(sizes.first_part[-1]), len(sizes.shape)
    num_channels, num_messages, num_in_waves = _count(tables, sizes)
    if num_messages > _MOST_IN_PYTHON:
        FIRST_CALLS.wait()
    found = Messages(
        first_take=np.zeros(num_parts + 1, np.int64),
        take_channel=np.empty(num_messages, np.int64),
        take_ordinal=np.empty(num_messages, np.int64),
        take_added_bytes=np.zeros(num_messages),
        first_post=np.zeros(num_messages + num_parts + 1, np.int64),
        post_channel=np.empty(num_messages, np.int64),
        num_posts=np.zeros(num_parts, np.int64),
        breadth=np.zeros(num_parts, np.int64),
        num_first=np.zeros(num_parts, np.int64),
        channel_source=np.empty(num_channels, np.int64),
        channel_destination=np.empty(num_channels, np.int64),
        channel_hop=np.empty(num_channels, np.int64),
        first_message=np.zeros(num_channels + 1, np.int64),
        message_bytes=np.empty(num_messages),
    )
    known = _KnownMessages(np.full(_table_size(num_operations), -1, np.int64), np.empty(num_operations, np.int64))
    _fill(tables, sizes, known, _workspace(tables, num_messages, num_in_waves), found)
    return found


def _workspace(tables: MoveTables, num_messages: int, num_in_waves: int) -> Workspace:
    num_moves = int(np.diff(tables.first_move).max(initial=0))
    num_channels = int(np.diff(tables.first_channel).max(initial=0))
    lengths = (*[num_moves] * 2, *[num_channels] * 3, num_moves + 1, *[num_messages + 1] * 4, *[num_in_waves] * 2)
    ends = np.cumsum(lengths)
    whole = np.empty(ends[-1], np.int64)
    return Workspace(*(whole[end - length : end] for end, length in zip(ends, lengths, strict=True)))


@borrows_elements
def _fill(tables: MoveTables, sizes: TransferSizes, known: _KnownMessages, space: Workspace, found: Messages) -> None:
    channel = 0
    for number, shape in enumerate(sizes.shape):
        known.first_channel[number] = channel
        if tables.has_messages[shape]:
            twin = _twin(sizes, known, number)
            if twin >= 0:
                _copy(sizes, known, number, twin, found)
            else:
                # Not `channel`: its constant first value would make numba compile the function once more.
                _fill_all(tables, sizes, number, known.first_channel[number], space, found)
            channel += _num_channels_of(tables, shape)
        else:
            first, last = tables.first_group[shape], tables.first_group[shape + 1]
            num_local = tables.group_first[last] - tables.group_first[first]
            _fill_nothing(sizes.first_part[number], num_local, found)


def _table_size(num_operations: int) -> int:
    size = 16
    while size < 2 * num_operations:
        size *= 2
    return size


@borrows_inner
def _twin(sizes: TransferSizes, known: _KnownMessages, number: int) -> int:
    """Return an earlier operation with equal messages; -1 if there is none, and this one is then added."""
    mask = len(known.table) - 1
    place = (sizes.num_elements[number] * 31 + sizes.shape[number] * 7919 + sizes.is_short[number]) & mask
    while known.table[place] >= 0:
        other = known.table[place]
        if (
            sizes.num_elements[other] == sizes.num_elements[number]
            and sizes.shape[other] == sizes.shape[number]
            and sizes.item_bytes[other] == sizes.item_bytes[number]
            and sizes.is_short[other] == sizes.is_short[number]
        ):
            return int(other)
        place = (place + 1) & mask
    known.table[place] = number
    return -1


@borrows_inner
def _copy(sizes: TransferSizes, known: _KnownMessages, number: int, twin: int, found: Messages) -> None:
    """Copy the messages of an equal operation, with this operation's parts and channels."""
    part, old = sizes.first_part[number], sizes.first_part[twin]
    num_parts = sizes.first_part[twin + 1] - old
    channel, old_channel = known.first_channel[number], known.first_channel[twin]
    num_channels = known.first_channel[twin + 1] - old_channel
    take, old_take = found.first_take[part], found.first_take[old]
    num_takes = found.first_take[old + num_parts] - old_take
    row, old_row = take + part, old_take + old
    post, old_post = found.first_post[row], found.first_post[old_row]
    message, old_message = found.first_message[channel], found.first_message[old_channel]
    for one in range(num_parts):
        found.first_take[part + one + 1] = found.first_take[old + one + 1] + take - old_take
        found.num_posts[part + one], found.breadth[part + one] = found.num_posts[old + one], found.breadth[old + one]
        found.num_first[part + one] = found.num_first[old + one]
    for one in range(num_takes):
        found.take_channel[take + one] = found.take_channel[old_take + one] + channel - old_channel
        found.take_ordinal[take + one] = found.take_ordinal[old_take + one]
        found.take_added_bytes[take + one] = found.take_added_bytes[old_take + one]
    for one in range(1, num_takes + num_parts + 1):
        found.first_post[row + one] = found.first_post[old_row + one] + post - old_post
    for one in range(found.first_post[old_row + num_takes + num_parts] - old_post):
        found.post_channel[post + one] = found.post_channel[old_post + one] + channel - old_channel
    for one in range(num_channels):
        found.channel_source[channel + one] = found.channel_source[old_channel + one] + part - old
        found.channel_destination[channel + one] = found.channel_destination[old_channel + one] + part - old
        found.channel_hop[channel + one] = found.channel_hop[old_channel + one]
        found.first_message[channel + one + 1] = found.first_message[old_channel + one + 1] + message - old_message
    for one in range(found.first_message[old_channel + num_channels] - old_message):
        found.message_bytes[message + one] = found.message_bytes[old_message + one]


@borrows_inner
def _fill_all(  # noqa: PLR0917 - numba has no keywords
    tables: MoveTables, sizes: TransferSizes, number: int, channel: int, space: Workspace, found: Messages
) -> None:
    """Fill in the messages of all groups of an operation."""
    shape, part = sizes.shape[number], sizes.first_part[number]
    for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
        size, template = tables.group_first[group + 1] - tables.group_first[group], tables.template[group]
        if tables.first_move[template] == tables.first_move[template + 1]:
            _fill_nothing(part, size, found)
        elif tables.kind[template] == NATIVE_RING:
            fill_ring(GroupPlace(tables, sizes, number, template, part, channel), found)
        elif tables.kind[template] == IN_WAVES:
            fill_waves(GroupPlace(tables, sizes, number, template, part, channel), space, found)
        else:
            fill_rounds(GroupPlace(tables, sizes, number, template, part, channel), space, found)
        part += size
        channel += tables.first_channel[template + 1] - tables.first_channel[template]


@borrows_inner
def _fill_nothing(part: int, size: int, found: Messages) -> None:
    for one in range(part, part + size):
        found.first_take[one + 1] = found.first_take[one]
        found.first_post[found.first_take[one] + one + 1] = found.first_post[found.first_take[one] + one]


@borrows_inner
def _num_channels_of(tables: MoveTables, shape: int) -> int:
    """Return the number of channels of all groups of a transfer."""
    num_channels = 0
    for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
        template = tables.template[group]
        num_channels += tables.first_channel[template + 1] - tables.first_channel[template]
    return num_channels


@borrows_elements
def _count(tables: MoveTables, sizes: TransferSizes) -> tuple[int, int, int]:
    """Return the numbers of channels and messages, and the most pieces of a group's moves over trees."""
    num_channels, num_messages, num_in_waves = 0, 0, 0
    for number, shape in enumerate(sizes.shape):
        if not tables.has_messages[shape]:
            continue
        num_channels += _num_channels_of(tables, shape)
        for group in range(tables.first_group[shape], tables.first_group[shape + 1]):
            template = tables.template[group]
            first, last = tables.first_move[template], tables.first_move[template + 1]
            if tables.kind[template] == IN_WAVES:
                pieces = (last - first) * num_waves_of(tables, sizes, number, template)
                num_in_waves = max(num_in_waves, pieces)
            for move in range(first, last):
                if tables.kind[template] == NATIVE_RING:
                    num_messages += 2 * num_received(num_bytes_of(tables, sizes, number), tables.num_chunks[template])
                else:
                    num_messages += num_pieces_of(tables, sizes, number, template, move)
    return num_channels, num_messages, num_in_waves
