"""The connections and links of the timeline. Compiled.

Each pair of ranks has one connection, in which messages and requests wait in order. The connections of a link share it
evenly, up to the most that one connection carries: `served` counts the bytes that each of them has been served so far,
and a connection finishes a message when `served` reaches its `target`. Rates change only when a connection joins or
leaves a link. If bytes come into a receiver's link faster than it passes them on, they form a queue there, and all
later bytes wait behind it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.jit import borrows_inner, inlined
from autosync.simulators.shared.arrays import Floats, Records
from autosync.simulators.timeline.event_queue import (
    LINK,
    LOOKS,
    MESSAGE_CAME,
    NUM_KINDS,
    REQUEST_CAME,
    SENDS,
    push,
)
from autosync.simulators.timeline.processors import work
from autosync.simulators.timeline.scene import PlayState, Scene

_ROUNDING_BYTES = 0.05
"""The bytes below which an amount counts as zero: after some minutes, a fast link sends more in the smallest step of a
float's time."""


@inlined
def burn(scene: Scene, state: PlayState, channel: int, number: int) -> None:
    """Use a processor to copy the bytes of one end of a message. Only other work on the processor waits for it."""
    one = scene.channels[channel]
    num_bytes = scene.message_bytes[one.first_message + number % one.num_messages]
    per_byte = scene.times.per_byte[int(scene.lines[one.line].queue < 0)]
    work(state.heap, state.ranks, state.processor_free, -1, num_bytes * per_byte / 2, 0.0)


@inlined
def request_comes(scene: Scene, state: PlayState, channel: int, arrives: float) -> None:
    """Handle the arrival of a request. Without shared processors, the time when its sender has read it is known now."""
    if len(state.processor_free) > 0:
        push(state.heap, arrives, channel * NUM_KINDS + REQUEST_CAME)
    else:
        is_wanted(scene, state, channel, arrives + scene.times.asked[scene.channels[channel].is_native])


@inlined
def is_wanted(scene: Scene, state: PlayState, channel: int, time: float) -> None:
    """Enter when the sender of a channel's next message has read its request: it is sent if it is also posted."""
    facts, ours = scene.channels[channel], state.channels[channel]
    message = state.messages[facts.first_message + ours.credit % facts.num_messages]
    message.wanted = time
    ours.credit += 1
    if ours.posted >= ours.credit:
        push(state.heap, max(time, message.posted), channel * NUM_KINDS + SENDS)


@borrows_inner
def stand(state: PlayState, line: int, channel: int, num_bytes: float) -> int:
    """Append a message or a request to a connection's queue."""
    entry, ours = state.free_entry[0], state.lines[line]
    one = state.entries[entry]
    if entry == state.free_entry[1]:
        # This entry was never used, and neither were those after it.
        state.free_entry[0] = state.free_entry[1] = entry + 1
    else:
        state.free_entry[0] = one.next
    one.channel, one.num_bytes, one.next, one.is_counted = channel, num_bytes, -1, False
    if ours.first < 0:
        ours.first = entry
    else:
        state.entries[ours.last].next = entry
    ours.last = entry
    return int(entry)


class _Ways(NamedTuple):
    """The arrays about the ways of connections. They are few, because each array argument costs time."""

    now: Floats
    lines: Records
    queues: Records
    queue_rate: Floats
    queue_burst: Floats
    latency: float
    latency_within: float
    bytes_queued: float


@inlined
def ways_of(scene: Scene, state: PlayState) -> _Ways:
    network, times = scene.network, scene.times
    return _Ways(
        state.heap.now,
        scene.lines,
        state.queues,
        network.queue_rate,
        network.queue_burst,
        times.latency,
        times.latency_within,
        times.bytes_queued,
    )


@inlined
def _wait_in(ways: _Ways, queue: int, most_bytes: float) -> float:
    """Return the seconds behind the bytes in a queue, or at most this many of them."""
    _settle_queue(ways, queue)
    return float(max(0.0, min(ways.queues[queue].backlog, most_bytes) / ways.queue_rate[queue]))


@borrows_inner
def _way(ways: _Ways, line: int, most_bytes: float) -> float:
    """Return the seconds from leaving the link to arrival, behind the bytes in queues, or at most this many of them.

    Among queues in series only the slowest fills, because it passes on no more than the others can handle.
    """
    facts, longest = ways.lines[line], 0.0
    if facts.queue >= 0:
        longest = _wait_in(ways, facts.queue, most_bytes)
    if facts.has_more:
        for queue in (facts.rack_out, facts.rack_in, facts.inner_out, facts.inner_in):
            if queue >= 0:
                longest = max(longest, _wait_in(ways, queue, most_bytes))
    return (ways.latency_within if facts.queue < 0 else ways.latency) + longest


@inlined
def request_leaves(scene: Scene, state: PlayState, channel: int) -> None:
    """Handle a request that found its connection idle and has passed its own link: it arrives after earlier messages.

    Queues hold only as many bytes of others as their senders' windows allow; the rest waits at the senders.
    """
    line = scene.channels[channel].back
    ways = ways_of(scene, state)
    seconds = _way(ways, line, ways.bytes_queued)
    request_comes(scene, state, channel, max(state.heap.now[0] + seconds, state.lines[line].arrives))


@inlined
def _settle_queue(ways: _Ways, queue: int) -> None:
    ours = ways.queues[queue]
    elapsed = ways.now[0] - ours.since
    if elapsed > 0.0:
        growth = (ours.inflow - ways.queue_rate[queue]) * elapsed
        ours.backlog = max(-ways.queue_burst[queue], ours.backlog + growth)
        ours.since = ways.now[0]


@borrows_inner
def _flow(ways: _Ways, line: int, rate: float) -> None:
    """Change the rate at which a connection fills the queues on its way."""
    facts = ways.lines[line]
    if facts.queue >= 0:
        _settle_queue(ways, facts.queue)
        ways.queues[facts.queue].inflow += rate
    if facts.has_more:
        for queue in (facts.rack_out, facts.rack_in, facts.inner_out, facts.inner_in):
            if queue >= 0:
                _settle_queue(ways, queue)
                ways.queues[queue].inflow += rate


@inlined
def _fill(ways: _Ways, line: int, num_bytes: float) -> None:
    """Add bytes at once to the queues on a connection's way."""
    facts = ways.lines[line]
    for queue in (facts.queue, facts.rack_out, facts.rack_in, facts.inner_out, facts.inner_in):
        if queue >= 0:
            _settle_queue(ways, queue)
            ways.queues[queue].backlog += num_bytes


@inlined
def _served_in(scene: Scene, link: int, seconds: float, count: int) -> float:
    """Return the bytes that each of so many connections of a link is served in some time."""
    rate, flow = scene.network.link_rate[link], scene.network.link_flow[link]
    return float(seconds * rate / count if rate <= flow * count else seconds * flow)


@inlined
def _settle_link(scene: Scene, state: PlayState, link: int) -> None:
    """Update the bytes that each connection of a link has been served until now."""
    ours = state.links[link]
    if ours.num_active > 0:
        ours.served += _served_in(scene, link, state.heap.now[0] - ours.since, ours.num_active)
        ours.since = state.heap.now[0]


@inlined
def passes(scene: Scene, state: PlayState, line: int) -> float:
    """Return when an idle connection that begins to send now has passed the bytes of others in the queue of its link.

    The connections share the link evenly, but it is one queue.
    """
    if scene.lines[line].queue < 0:
        return float(state.heap.now[0])
    link = scene.lines[line].link
    ours, rate, num_bytes = state.links[link], scene.network.link_rate[link], 0.0
    most_bytes = rate * scene.times.queued_seconds
    served = ours.served + _served_in(scene, link, state.heap.now[0] - ours.since, max(1, ours.num_active))
    for place in range(ours.num_active):
        other = state.lines[state.active[link, place]]
        following = state.entries[other.first].next
        left = other.target - served + (state.entries[following].num_bytes if following >= 0 else 0.0)
        num_bytes += left
        if num_bytes >= most_bytes:
            break
    return float(state.heap.now[0] + min(num_bytes / rate, scene.times.queued_seconds))


@inlined
def join(scene: Scene, state: PlayState, line: int, num_bytes: float) -> None:
    """Let a connection send again. After a pause of the link, a burst passes at once."""
    link, ways = scene.lines[line].link, ways_of(scene, state)
    _settle_link(scene, state, link)
    ours, rate, flow = state.links[link], scene.network.link_rate[link], scene.network.link_flow[link]
    count, burst = ours.num_active, 0.0
    # Its first byte arrives no earlier than this, and not before its earlier messages.
    state.lines[line].arrives = max(state.lines[line].arrives, passes(scene, state, line))
    if count == 0:
        burst = min(num_bytes, scene.network.link_burst[link], (state.heap.now[0] - ours.since) * rate)
        ours.since = state.heap.now[0]
        _fill(ways, line, burst)
    change = min(flow, rate / (count + 1)) - (min(flow, rate / count) if count > 0 else 0.0)
    if change != 0.0:
        for place in range(count):
            _flow(ways, state.active[link, place], change)
    _flow(ways, line, min(flow, rate / (count + 1)))
    state.active[link, count] = line
    ours.num_active += 1
    state.lines[line].target = ours.served + num_bytes - burst
    ours.nearest = min(ours.nearest, state.lines[line].target)
    _plan_link(scene, state, link)


@inlined
def _plan_link(scene: Scene, state: PlayState, link: int) -> None:
    """Plan the event at which the link has served the next message to its end."""
    ours = state.links[link]
    if ours.num_active == 0:
        ours.due = np.inf
        return
    rate, flow = scene.network.link_rate[link], scene.network.link_flow[link]
    left = max(0.0, ours.nearest - ours.served)
    ours.due = state.heap.now[0] + (left * ours.num_active / rate if rate <= flow * ours.num_active else left / flow)
    # An event that comes too early plans the right one.
    if ours.due < ours.planned:
        ours.planned = ours.due
        push(state.heap, ours.due, link * NUM_KINDS + LINK)


@inlined
def link_is_due(scene: Scene, state: PlayState, link: int) -> None:
    """Handle the event of a link: it is the planned one, or one that was replaced by an earlier one."""
    ours = state.links[link]
    if ours.planned != state.heap.now[0]:
        return
    ours.planned = np.inf
    if ours.due == state.heap.now[0]:
        serve(scene, state, link)
    elif ours.due < np.inf:
        ours.planned = ours.due
        push(state.heap, ours.due, link * NUM_KINDS + LINK)


@inlined
def serve(scene: Scene, state: PlayState, link: int) -> None:
    """Remove finished messages from the link and begin those behind them."""
    ours, place, ways = state.links[link], 0, ways_of(scene, state)
    ours.due = np.inf
    _settle_link(scene, state, link)
    ours.nearest = np.inf
    while place < ours.num_active:
        line = state.active[link, place]
        served = state.lines[line]
        if served.target <= ours.served + _ROUNDING_BYTES:
            seconds = _way(ways, line, np.inf)
            _leave(scene, state, line, seconds)
            while served.first >= 0 and state.entries[served.first].num_bytes == 0.0:
                _leave(scene, state, line, seconds)
            if served.first < 0:
                _rest(scene, state, link, place)
                continue
            served.target = ours.served + state.entries[served.first].num_bytes
        ours.nearest = min(ours.nearest, served.target)
        place += 1
    _plan_link(scene, state, link)


@inlined
def _rest(scene: Scene, state: PlayState, link: int, place: int) -> None:
    """Remove a connection that has nothing to send from its link; the others are served faster."""
    ours, rate, flow = state.links[link], scene.network.link_rate[link], scene.network.link_flow[link]
    ways, count = ways_of(scene, state), ours.num_active
    _flow(ways, state.active[link, place], -min(flow, rate / count))
    ours.num_active -= 1
    state.active[link, place] = state.active[link, count - 1]
    if count > 1:
        change = min(flow, rate / (count - 1)) - min(flow, rate / count)
        if change != 0.0:
            for other in range(count - 1):
                _flow(ways, state.active[link, other], change)


@inlined
def _leave(scene: Scene, state: PlayState, line: int, seconds: float) -> None:
    """Send the first message of a connection on its way."""
    entry = state.lines[line].first
    one = state.entries[entry]
    channel, num_bytes, is_counted = one.channel, one.num_bytes, one.is_counted
    state.lines[line].first = one.next
    one.next = state.free_entry[0]
    state.free_entry[0] = entry
    arrives = max(state.heap.now[0] + seconds, state.lines[line].arrives)
    if num_bytes == 0.0:
        request_comes(scene, state, channel, arrives)
        return
    state.lines[line].num_bytes -= num_bytes
    state.lines[line].arrives = arrives
    if len(state.processor_free) > 0:
        push(state.heap, arrives, channel * NUM_KINDS + MESSAGE_CAME)
    else:
        is_heard(scene, state, channel, arrives + scene.times.arrived[scene.channels[channel].is_native])
    if is_counted:
        count_sent(scene, state, scene.channels[channel].source)


@inlined
def is_heard(scene: Scene, state: PlayState, channel: int, time: float) -> None:
    """Enter when the receiver of a channel's next message has read it. If it waits for just this one, it then looks."""
    facts, ours = scene.channels[channel], state.channels[channel]
    number, part = ours.arrived, facts.destination
    state.messages[facts.first_message + number % facts.num_messages].heard = time
    ours.arrived += 1
    waits = state.parts[part]
    if waits.is_open and not waits.is_busy and waits.step < scene.parts[part].num_takes:
        take = scene.takes[scene.parts[part].first_take + waits.step]
        if take.channel == channel and number == waits.runs * facts.num_messages + take.ordinal:
            push(state.heap, time, part * NUM_KINDS + LOOKS)


@inlined
def count_sent(scene: Scene, state: PlayState, part: int) -> None:
    """Count one more message of a part as sent. When all are, it may be done."""
    ours = state.parts[part]
    ours.num_sent += 1
    if ours.num_sent == scene.parts[part].num_posts:
        push(state.heap, state.heap.now[0], part * NUM_KINDS + LOOKS)
