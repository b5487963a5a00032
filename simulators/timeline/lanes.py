"""The work of a lane's thread on its transfers: it begins them, and requests, posts and takes messages. Compiled.

A transfer takes its messages in order. It requests them a window ahead, and a sender sends only requested messages.
Reads may give way to the engine's messages: then they request nothing while any of these are under way at their rank.
"""

from __future__ import annotations

from autosync.simulators.jit import borrows_inner, inlined
from autosync.simulators.timeline.event_queue import BEGUN, ENDS, GOES_ON, LEAVES, LOOKS, NUM_KINDS, SENDS, TAKEN, push
from autosync.simulators.timeline.initial_state import is_due
from autosync.simulators.timeline.processors import work
from autosync.simulators.timeline.scene import GRADIENTS_FIRST, READS_FIRST, UNRULED, PlayState, Scene
from autosync.simulators.timeline.transfer_sizes import NUM_FAVOURED
from autosync.simulators.timeline.wire import burn, count_sent, join, passes, request_leaves, stand

# How often a read that gives way looks whether it may go on.
_LOOK_SECONDS = 2e-3


@inlined
def advance(scene: Scene, state: PlayState, queue: int) -> None:
    """Begin the next transfers of a lane, as far as they can begin."""
    ours, begin, end = state.lanes[queue], scene.first_queued[queue], scene.first_queued[queue + 1]
    while begin < end and ours.num_under_way < scene.lane_width and ours.iteration < state.num_iterations:
        if ours.head == end:
            ours.head = ours.coming = begin
            ours.iteration += 1
            continue
        iteration, part = ours.iteration, scene.queued[ours.head]
        operation = scene.parts[part].operation
        is_next = is_due(scene, iteration, operation)
        if is_next and state.unmet[iteration, part] > 0:
            return
        if ours.coming == ours.head:
            ours.coming += 1
        elif is_next:
            ours.num_asked -= scene.parts[part].num_takes
        ours.head += 1
        if not is_next:
            continue
        ours.num_under_way += 1
        state.begun[iteration, part] = state.heap.now[0]
        state.parts[part].iteration = iteration
        facts = scene.parts[part]
        # Workers of input pipelines are other processes: they do not wait for the rank's Python.
        rank = -1 if scene.priority[operation] == UNRULED else facts.rank
        until = work(state.heap, state.ranks, state.processor_free, rank, facts.work, facts.work)
        # Only the work of input pipelines also waits without a processor.
        push(state.heap, until + facts.seconds, part * NUM_KINDS + BEGUN)


@inlined
def begin(scene: Scene, state: PlayState, part: int) -> None:
    operation, rank = scene.parts[part].operation, scene.parts[part].rank
    lane = rank * scene.num_lanes + scene.lane[operation]
    state.lanes[lane].priority, state.lanes[lane].part = scene.priority[operation], part
    ours = state.parts[part]
    ours.step = ours.num_sent = 0
    ours.is_open = True


@inlined
def go(scene: Scene, state: PlayState, part: int) -> None:
    """Request and post messages one by one, also requests for the lane's next part; then wait for the next message."""
    ours, rank = state.parts[part], scene.parts[part].rank
    row = scene.parts[part].first_take + part + ours.step
    takes_turns = scene.parts[part].breadth == 0
    ours.is_busy = True
    while True:
        num_asks, num_posts = _window(scene, state, part) - ours.asked, scene.first_post[row + 1] - ours.post
        # gloo requests a segment, posts one, and then requests the next, so that request waits behind its own data.
        if num_asks > 0 and not (takes_turns and num_asks < num_posts):
            native = _ask(scene, state, part)
            seconds = scene.times.ask[native]
        elif num_posts > 0:
            channel = scene.post_channel[ours.post]
            ours.post += 1
            _post(scene, state, channel)
            native = scene.channels[channel].is_native
            seconds = scene.times.post[native]
        else:
            coming = _coming(scene, state, part)
            if coming < 0:
                break
            native = _ask(scene, state, coming)
            seconds = scene.times.ask[native]
        if seconds > 0.0:
            until = work(state.heap, state.ranks, state.processor_free, rank, seconds, seconds)
            push(state.heap, until, part * NUM_KINDS + GOES_ON)
            return
        if takes_turns and num_asks > 0:
            # Posted messages are sent first.
            push(state.heap, state.heap.now[0], part * NUM_KINDS + GOES_ON)
            return
    ours.is_busy = False
    _wait(scene, state, part)


@inlined
def _wait(scene: Scene, state: PlayState, part: int) -> None:
    """Let a part look at its next message when it has come, or at its end, if it is known when."""
    facts, ours = scene.parts[part], state.parts[part]
    if ours.step < facts.num_takes:
        take = scene.takes[facts.first_take + ours.step]
        channel = scene.channels[take.channel]
        if state.channels[take.channel].arrived > ours.runs * channel.num_messages + take.ordinal:
            push(state.heap, state.messages[channel.first_message + take.ordinal].heard, part * NUM_KINDS + LOOKS)
    elif ours.num_sent >= facts.num_posts:
        push(state.heap, state.heap.now[0], part * NUM_KINDS + LOOKS)


@inlined
def _window(scene: Scene, state: PlayState, part: int) -> int:
    """Return the number of takes that a part may have requested by now."""
    facts, step = scene.parts[part], state.parts[part].step
    last = facts.num_first if step < facts.num_first else facts.num_takes
    window = 2 if facts.breadth == 0 else _width(scene, state, part)
    return int(min(last, step + window))


@inlined
def _coming(scene: Scene, state: PlayState, part: int) -> int:
    """Return the later part of the lane to request for now; -1 if there is none or this part has requests left."""
    facts, ours = scene.parts[part], state.parts[part]
    if facts.waits_its_turn or ours.asked < facts.num_takes:
        return -1
    queue, num_asked = facts.rank * scene.num_lanes + scene.lane[facts.operation], ours.asked - ours.step
    lane = state.lanes[queue]
    while lane.coming < scene.first_queued[queue + 1]:
        other = scene.queued[lane.coming]
        if is_due(scene, ours.iteration, scene.parts[other].operation):
            if scene.parts[other].waits_its_turn or state.unmet[ours.iteration, other] > 0:
                return -1
            asked = state.parts[other].asked
            if asked < scene.parts[other].num_takes:
                is_near = asked + num_asked + lane.num_asked < _width(scene, state, other)
                return int(other) if is_near else -1
            lane.num_asked += asked
        lane.coming += 1
    return -1


@borrows_inner
def _width(scene: Scene, state: PlayState, part: int) -> int:
    """Return how many messages a part may have requested at a time."""
    facts = scene.parts[part]
    priority = scene.priority[facts.operation]
    if priority == UNRULED:
        gives_way = scene.right_of_way == GRADIENTS_FIRST and _gives_way(scene, state, facts.rank)
        return 0 if gives_way else int(facts.breadth + facts.ahead)
    if scene.right_of_way == READS_FIRST and _awaits_batch(scene, state, facts.rank):
        return int(max(1, facts.breadth))
    lowest, highest = priority, priority
    for lane in range(scene.num_lanes):
        other = state.lanes[facts.rank * scene.num_lanes + lane].priority
        if other >= 0:
            lowest, highest = min(lowest, other), max(highest, other)
    if lowest < priority:
        return int(max(1, facts.breadth))
    return int(facts.breadth + facts.ahead + (NUM_FAVOURED if highest > priority else 0))


@borrows_inner
def _gives_way(scene: Scene, state: PlayState, rank: int) -> bool:
    if _awaits_batch(scene, state, rank):
        return False
    num_messages = 0
    for lane in range(scene.num_lanes):
        num_messages += state.lanes[rank * scene.num_lanes + lane].priority >= 0
    return num_messages > 0


@borrows_inner
def _awaits_batch(scene: Scene, state: PlayState, rank: int) -> bool:
    """Whether a rank's step waits for its batch, which is how the program of each step begins."""
    ours = state.ranks[rank]
    if not scene.trains[rank] or ours.at != 0 or ours.iteration >= state.num_iterations:
        return False
    gate = len(scene.parts) + scene.program_argument[0] * len(scene.trains) + rank
    return bool(state.unmet[ours.iteration, gate] > 0)


@borrows_inner
def let_reads_look(scene: Scene, state: PlayState, rank: int) -> None:
    """Let the reads of a rank that gave way look, some time from now, whether they may go on."""
    now = state.heap.now[0]
    if state.ranks[rank].looks_at > now:
        return
    state.ranks[rank].looks_at = now + _LOOK_SECONDS
    for lane in range(scene.num_lanes):
        part = state.lanes[rank * scene.num_lanes + lane].part
        if part >= 0 and scene.priority[scene.parts[part].operation] == UNRULED:
            push(state.heap, now + _LOOK_SECONDS, part * NUM_KINDS + LOOKS)


@inlined
def _ask(scene: Scene, state: PlayState, part: int) -> int:
    """Request one more message; return whether it belongs to the backend's own collective."""
    channel = scene.takes[scene.parts[part].first_take + state.parts[part].asked].channel
    state.parts[part].asked += 1
    back = scene.channels[channel].back
    if state.lines[back].first >= 0:
        stand(state, back, channel, 0.0)
    else:
        leaves = passes(scene, state, back)
        if leaves > state.heap.now[0]:
            push(state.heap, leaves, channel * NUM_KINDS + LEAVES)
        else:
            request_leaves(scene, state, channel)
    return int(scene.channels[channel].is_native)


@inlined
def _post(scene: Scene, state: PlayState, channel: int) -> None:
    """Post one more message: it is sent when it is also requested."""
    facts, ours = scene.channels[channel], state.channels[channel]
    message = state.messages[facts.first_message + ours.posted % facts.num_messages]
    message.posted = state.heap.now[0]
    ours.posted += 1
    if ours.credit >= ours.posted:
        push(state.heap, message.wanted, channel * NUM_KINDS + SENDS)


@inlined
def send(scene: Scene, state: PlayState, channel: int) -> None:
    """Send the next message of a channel."""
    facts, ours = scene.channels[channel], state.channels[channel]
    line = facts.line
    num_bytes = scene.message_bytes[facts.first_message + ours.sent % facts.num_messages]
    ours.sent += 1
    burn(scene, state, channel, ours.sent - 1)
    is_ahead = state.lines[line].num_bytes + num_bytes <= scene.times.bytes_ahead
    entry = stand(state, line, channel, num_bytes)
    state.entries[entry].is_counted = not is_ahead
    state.lines[line].num_bytes += num_bytes
    if state.lines[line].first == entry:
        join(scene, state, line, num_bytes)
    if is_ahead:
        count_sent(scene, state, facts.source)


@inlined
def look(scene: Scene, state: PlayState, part: int) -> None:
    """Take the next message of a part if it has come, or finish the part if it is done."""
    facts, ours, now = scene.parts[part], state.parts[part], state.heap.now[0]
    if not ours.is_open or ours.is_busy:
        return
    if ours.step < facts.num_takes:
        take = scene.takes[facts.first_take + ours.step]
        channel = scene.channels[take.channel]
        has_come = state.channels[take.channel].arrived > ours.runs * channel.num_messages + take.ordinal
        if has_come and state.messages[channel.first_message + take.ordinal].heard <= now:
            ours.is_busy = True
            taken, added = scene.times.taken[channel.is_native], take.added_bytes / scene.times.rate_added
            rank = -1 if channel.is_native else facts.rank
            until = work(state.heap, state.ranks, state.processor_free, rank, taken + added, taken)
            push(state.heap, until, part * NUM_KINDS + TAKEN)
        elif scene.right_of_way == GRADIENTS_FIRST and _window(scene, state, part) > ours.asked:
            ours.is_busy = True
            push(state.heap, now, part * NUM_KINDS + GOES_ON)
        return
    if ours.num_sent < facts.num_posts:
        return
    ours.is_open = False
    ours.asked = 0
    ours.runs += 1
    state.lanes[facts.rank * scene.num_lanes + scene.lane[facts.operation]].priority = -1
    push(state.heap, now, part * NUM_KINDS + ENDS)
    if scene.right_of_way == GRADIENTS_FIRST:
        let_reads_look(scene, state, facts.rank)
