"""The upcoming events of the timeline: a heap by time, and a queue of events for the current moment. Compiled."""

from __future__ import annotations

from autosync.simulators.jit import borrows_inner
from autosync.simulators.timeline.scene import Heap

(
    BEGUN,
    TAKEN,
    LINK,
    ASKED,
    ARRIVED,
    COMPUTED,
    WORKED,
    REQUEST_CAME,
    MESSAGE_CAME,
    GOES_ON,
    LOOKS,
    ADVANCES,
    WORKS,
    SENDS,
    ENDS,
    LEAVES,
) = range(16)
NUM_KINDS = 16
"""The number of kinds of events; an event is of a part, a link, a channel or a rank."""


@borrows_inner
def push(heap: Heap, time: float, value: int) -> None:
    """Add an event at a time. `value` is `what * NUM_KINDS + kind`.

    It is one number, because numba would compile the function again for each constant kind in a call.
    """
    entries, counts = heap.entries, heap.counts
    if time <= heap.now[0]:
        heap.soon[counts[2]] = value
        counts[2] += 1
        return
    place = counts[0]
    counts[0] += 1
    while place > 0:
        above = (place - 1) >> 2
        if entries[above].time <= time:
            break
        entries[place].time, entries[place].what = entries[above].time, entries[above].what
        place = above
    entries[place].time, entries[place].what = time, value


@borrows_inner
def pop(heap: Heap) -> int:
    """Remove and return the next event; -1 if there is none.

    Time advances when no event is left at the current moment.
    """
    entries, counts = heap.entries, heap.counts
    if counts[1] < counts[2]:
        counts[1] += 1
        return int(heap.soon[counts[1] - 1])
    counts[1] = counts[2] = 0
    if counts[0] == 0:
        return -1
    found = entries[0].what
    heap.now[0] = entries[0].time
    counts[0] -= 1
    count, place = counts[0], 0
    time, value = entries[count].time, entries[count].what
    while True:
        # Each entry has four children: they are adjacent in memory, and the heap has half as many levels.
        below = 4 * place + 1
        if below >= count:
            break
        earliest = entries[below].time
        for other in range(below + 1, min(below + 4, count)):
            if entries[other].time < earliest:
                below, earliest = other, entries[other].time
        if earliest >= time:
            break
        entries[place].time, entries[place].what = earliest, entries[below].what
        place = below
    entries[place].time, entries[place].what = time, value
    return int(found)
