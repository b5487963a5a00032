"""The messages of gloo's own all-reduce. Compiled.

In contrast to the engine's own ring, every member sends to the one before it. gloo cuts the buffer into segments of at
most 1 MiB, the same number for each member and at least two. Each of its two phases sends and receives all segments
except those of one member. In each phase two segments are on their way at a time, and the second phase begins when the
first has ended.
"""

from __future__ import annotations

from autosync.simulators.jit import borrows_inner
from autosync.simulators.timeline.transfer_sizes import GroupPlace, Messages, num_bytes_of, num_members_of

SEGMENT_BYTES = 2**20
"""The segment size of gloo's own all-reduce."""


@borrows_inner
def num_received(num_bytes: int, num_members: int) -> int:
    """Return the number of segments that a member receives in each phase."""
    segments = max(-(-num_bytes // SEGMENT_BYTES), 2 * num_members)
    per_member = -(-segments // num_members)
    return int(per_member * (num_members - 1))


@borrows_inner
def fill_ring(group: GroupPlace, found: Messages) -> None:
    num_members = num_members_of(group.tables, group.template)
    num_bytes = num_bytes_of(group.tables, group.sizes, group.number)
    in_ring = group.tables.num_chunks[group.template]
    received = num_received(num_bytes, in_ring)
    size = num_bytes * (in_ring - 1) / in_ring / received
    for member in range(num_members):
        channel = group.channel + member
        found.channel_source[channel] = group.part + member
        found.channel_destination[channel] = group.part + (member - 1) % num_members
        found.channel_hop[channel] = group.tables.channel_hop[group.tables.first_channel[group.template] + member]
        found.first_message[channel + 1] = found.first_message[channel] + 2 * received
        for message in range(found.first_message[channel], found.first_message[channel + 1]):
            found.message_bytes[message] = size
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
