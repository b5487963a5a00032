"""The upcoming events of the timeline: a heap by time, and a queue of events for the current moment. Compiled.

The kinds of events, by what they happen to:

- a part: its thread has `BEGUN` it, or has `TAKEN` and added up a message; it `GOES_ON` to request and post; it `LOOKS`
  for its next message, or whether it is done; it `ENDS`.
- a lane: it `ADVANCES` to its next transfer, if that may begin.
- a channel: it `SENDS` a message that is posted and requested; a request `LEAVES` for its sender. If ranks share
  processors, a message or a request that came (`MESSAGE_CAME`, `REQUEST_CAME`) must be read; else it is known
  beforehand when it will have been.
- a link (`LINK`): it has served the next message to its end.
- a rank: it has `COMPUTED` a step of its program; its local thread `WORKS` on what is next, or has `WORKED`.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.jit import borrows_inner
from autosync.simulators.timeline.scene import Heap

(
    BEGUN,
    TAKEN,
    LINK,
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
) = range(14)
NUM_KINDS = 16
"""The number of kinds of events; an event is of a part, a link, a channel or a rank."""


@borrows_inner
def push(heap: Heap, time: float, value: int) -> None:
    """Add an event at a time. `value` is `what * NUM_KINDS + kind`.

    It is one number, because numba would compile the function again for each constant kind in a call.
    """
    entries, counts = heap.entries, heap.counts
    if time <= heap.now[0]:
        if counts[2] == len(heap.soon):
            # Any number of events may happen at one moment, in which those before these have happened.
            num_left = counts[2] - counts[1]
            for position in range(num_left):
                heap.soon[position] = heap.soon[counts[1] + position]
            counts[1], counts[2] = 0, num_left
        heap.soon[counts[2]] = value
        counts[2] += 1
        return
    place = counts[0]
    counts[0] += 1
    if place == counts[3]:
        # The entries behind the last one are endless, so `pop` can read four children of any entry that has one.
        for beyond in range(place + 1, place + 4):
            entries[beyond].time = np.inf
        counts[3] += 1
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
    entries[count].time = np.inf
    while True:
        # Each entry has four children: they are adjacent in memory, and the heap has half as many levels.
        below = 4 * place + 1
        if below >= count:
            break
        earliest, second = entries[below].time, entries[below + 1].time
        third, fourth = entries[below + 2].time, entries[below + 3].time
        chosen = below
        if second < earliest:
            chosen, earliest = below + 1, second
        if third < earliest:
            chosen, earliest = below + 2, third
        if fourth < earliest:
            chosen, earliest = below + 3, fourth
        if earliest >= time:
            break
        entries[place].time, entries[place].what = earliest, entries[chosen].what
        place = chosen
    if count > 0:
        entries[place].time, entries[place].what = time, value
    return int(found)
