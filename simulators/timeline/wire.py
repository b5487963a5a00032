"""What the timeline's kernel stands on: what is about to happen, processors, connections and links. Compiled.

`events` calls this: numba keeps what it compiled for a file until that file changes, so a change here wants one there.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.timeline.compiled import borrows_inner
from autosync.simulators.timeline.network import Scene, State

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
) = range(15)
NUM_KINDS = 16
"""What may happen: to a part, a link, a channel or a rank."""

_ROUNDING_BYTES = 1e-6


# What is about to happen, a heap by time.


@borrows_inner
def push(state: State, time: float, kind: int, what: int) -> None:
    place = state.num_heap[0]
    state.num_heap[0] += 1
    value = what * NUM_KINDS + kind
    while place > 0:
        above = (place - 1) >> 1
        if state.heap_time[above] <= time:
            break
        state.heap_time[place], state.heap_what[place] = state.heap_time[above], state.heap_what[above]
        place = above
    state.heap_time[place], state.heap_what[place] = time, value


@borrows_inner
def pop(state: State) -> int:
    found = state.heap_what[0]
    state.now[0] = state.heap_time[0]
    state.num_heap[0] -= 1
    count = state.num_heap[0]
    time, value = state.heap_time[count], state.heap_what[count]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and state.heap_time[below + 1] < state.heap_time[below]:
            below += 1
        if state.heap_time[below] >= time:
            break
        state.heap_time[place], state.heap_what[place] = state.heap_time[below], state.heap_what[below]
        place = below
    state.heap_time[place], state.heap_what[place] = time, value
    return int(found)


# Processors.


@borrows_inner
def work(scene: Scene, state: State, rank: int, seconds: float) -> float:
    """When work is done that is wanted now: by the processor that is free first. Of a rank's Python one thing at a time
    is done; -1: it is no Python.
    """
    start = state.now[0]
    if rank >= 0:
        start = max(start, state.ranks[rank].python_free)
    if scene.times.num_processors > 0:
        first = 0
        for processor in range(1, len(state.processor_free)):
            if state.processor_free[processor] < state.processor_free[first]:
                first = processor
        start = max(start, state.processor_free[first])
        state.processor_free[first] = start + seconds
    if rank >= 0:
        state.ranks[rank].python_free = start + seconds
    return float(start + seconds)


@borrows_inner
def burn(scene: Scene, state: State, channel: int, number: int) -> None:
    """The bytes of a message are copied, at one of its ends: nobody waits for that but who wants the processor."""
    one = scene.channels[channel]
    num_bytes = scene.message_bytes[one.first_message + number % one.num_messages]
    work(scene, state, -1, num_bytes * scene.times.per_byte / 2)


# Connections and links.


@borrows_inner
def stand(state: State, line: int, channel: int, num_bytes: float) -> int:
    """Stand in line behind what is there."""
    entry, ours = state.free_entry[0], state.lines[line]
    one = state.entries[entry]
    state.free_entry[0] = one.next
    one.channel, one.num_bytes, one.next, one.is_counted = channel, num_bytes, -1, False
    if ours.first < 0:
        ours.first = entry
    else:
        state.entries[ours.last].next = entry
    ours.last = entry
    return int(entry)


@borrows_inner
def way(scene: Scene, state: State, line: int) -> float:
    """Seconds from the last byte's leaving the link to its arrival: behind what stands in queues."""
    facts, seconds = scene.lines[line], scene.times.latency
    for queue in (facts.queue, facts.rack_out, facts.rack_in):
        if queue >= 0:
            _settle_queue(scene, state, queue)
            seconds += max(0.0, state.queues[queue].backlog) / scene.network.queue_rate[queue]
    return seconds


@borrows_inner
def way_of_request(scene: Scene, state: State, line: int) -> float:
    """The same for a request that finds its connection idle: it comes after what went before it.

    Of others' bytes as many stand in a queue as their senders' windows let; the rest waits with the senders.
    """
    facts, seconds = scene.lines[line], scene.times.latency
    for queue in (facts.queue, facts.rack_out, facts.rack_in):
        if queue >= 0:
            _settle_queue(scene, state, queue)
            backlog = min(max(0.0, state.queues[queue].backlog), scene.times.bytes_queued)
            seconds += backlog / scene.network.queue_rate[queue]
    return float(max(seconds, state.lines[line].arrives - state.now[0]))


@borrows_inner
def _settle_queue(scene: Scene, state: State, queue: int) -> None:
    ours = state.queues[queue]
    elapsed = state.now[0] - ours.since
    if elapsed > 0.0:
        growth = (ours.inflow - scene.network.queue_rate[queue]) * elapsed
        ours.backlog = max(-scene.network.queue_burst[queue], ours.backlog + growth)
        ours.since = state.now[0]


@borrows_inner
def _flow(scene: Scene, state: State, line: int, rate: float) -> None:
    """A connection brings so much more, or less, into the queues on its way."""
    facts = scene.lines[line]
    for queue in (facts.queue, facts.rack_out, facts.rack_in):
        if queue >= 0:
            _settle_queue(scene, state, queue)
            state.queues[queue].inflow += rate


@borrows_inner
def _settle_link(scene: Scene, state: State, link: int) -> None:
    """What each connection of a link has been served until now."""
    ours = state.links[link]
    if ours.num_active > 0:
        ours.served += (state.now[0] - ours.since) * scene.network.link_rate[link] / ours.num_active
        ours.since = state.now[0]


@borrows_inner
def join(scene: Scene, state: State, line: int, num_bytes: float) -> None:
    """A connection has something to send again; after a pause of the link a burst passes at once."""
    link = scene.lines[line].link
    _settle_link(scene, state, link)
    ours, rate = state.links[link], scene.network.link_rate[link]
    count, burst = ours.num_active, 0.0
    if count == 0:
        burst = min(scene.network.link_burst[link], (state.now[0] - ours.since) * rate)
        ours.since = state.now[0]
    for place in range(count):
        _flow(scene, state, state.active[link, place], rate / (count + 1) - rate / count)
    _flow(scene, state, line, rate / (count + 1))
    state.active[link, count] = line
    ours.num_active += 1
    state.lines[line].target = ours.served + max(0.0, num_bytes - burst)
    _plan_link(scene, state, link)


@borrows_inner
def _plan_link(scene: Scene, state: State, link: int) -> None:
    """When the link has served the next message to its end."""
    ours = state.links[link]
    if ours.num_active == 0:
        ours.due = np.inf
        return
    target = np.inf
    for place in range(ours.num_active):
        target = min(target, state.lines[state.active[link, place]].target)
    due = state.now[0] + max(0.0, target - ours.served) * ours.num_active / scene.network.link_rate[link]
    if due != ours.due:
        ours.due = due
        push(state, due, LINK, link)


@borrows_inner
def serve(scene: Scene, state: State, link: int) -> None:
    """Messages have left the link; what stands behind them comes next."""
    ours, rate, place = state.links[link], scene.network.link_rate[link], 0
    ours.due = np.inf
    _settle_link(scene, state, link)
    while place < ours.num_active:
        line = state.active[link, place]
        served = state.lines[line]
        if served.target > ours.served + _ROUNDING_BYTES:
            place += 1
            continue
        seconds = way(scene, state, line)
        _leave(scene, state, line, seconds)
        while served.first >= 0 and state.entries[served.first].num_bytes == 0.0:
            _leave(scene, state, line, seconds)
        if served.first >= 0:
            served.target = ours.served + state.entries[served.first].num_bytes
            place += 1
            continue
        count = ours.num_active
        _flow(scene, state, line, -rate / count)
        ours.num_active -= 1
        state.active[link, place] = state.active[link, count - 1]
        for other in range(count - 1):
            _flow(scene, state, state.active[link, other], rate / (count - 1) - rate / count)
    _plan_link(scene, state, link)


@borrows_inner
def _leave(scene: Scene, state: State, line: int, seconds: float) -> None:
    """The first in line is on its way."""
    entry = state.lines[line].first
    one = state.entries[entry]
    channel, num_bytes, is_counted = one.channel, one.num_bytes, one.is_counted
    state.lines[line].first = one.next
    one.next = state.free_entry[0]
    state.free_entry[0] = entry
    if num_bytes == 0.0:
        push(state, state.now[0] + seconds, REQUEST_CAME, channel)
        return
    state.lines[line].num_bytes -= num_bytes
    state.lines[line].arrives = state.now[0] + seconds
    push(state, state.now[0] + seconds, MESSAGE_CAME, channel)
    if is_counted:
        part = scene.channels[channel].source
        state.parts[part].num_sent += 1
        if state.parts[part].num_sent == scene.parts[part].num_posts:
            push(state, state.now[0], LOOKS, part)
