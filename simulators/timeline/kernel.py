"""The timeline's kernel: simulates a plan message by message, as the engine and the network execute it. Compiled.

The training of each rank follows its program. Each lane has a thread that executes its transfers in order, one at a
time. Each rank has one thread for local work, which takes the oldest iteration first and in it the first message.

A transfer takes its messages in order. It requests them a window ahead, and a sender sends only requested messages. Two
ranks have one connection, in which messages and requests wait in order. A link's connections share it evenly. If bytes
come faster than the receiver's link passes them on, they wait in its queue. Requests wait there too, so they are late
if the way back is busy.

`scene` has the tables of the input and of the state, `event_queue` the kinds of events. Most of what happens to a
message is known before it happens, such as when it will have arrived. It is then written down with the message, and an
event comes only where a part waits.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.jit import borrows_elements, inlined
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.timeline.event_queue import (
    ADVANCES,
    BEGUN,
    COMPUTED,
    GOES_ON,
    LEAVES,
    LINK,
    LOOKS,
    MESSAGE_CAME,
    NUM_KINDS,
    REQUEST_CAME,
    SENDS,
    TAKEN,
    WORKED,
    WORKS,
    pop,
    push,
)
from autosync.simulators.timeline.initial_state import initial_state, is_due, item_of
from autosync.simulators.timeline.lanes import advance, begin, go, let_reads_look, look, send
from autosync.simulators.timeline.processors import work
from autosync.simulators.timeline.scene import GRADIENTS_FIRST, Played, PlayState, Scene
from autosync.simulators.timeline.steady_state import num_iterations, within_reach
from autosync.simulators.timeline.training_program import COMPUTE, EVENT, STEP_ENDS, WAIT, WORK
from autosync.simulators.timeline.wire import burn, is_heard, is_wanted, link_is_due, request_leaves

_STEADY = 3e-3
_MIN_STEADY_STEPS = 2
# An estimate of the time that Linux gives a thread on two processors before it lets another one run.
_SLICE_SECONDS = 1.4e-3


def play(scene: Scene, count: int | None = None, *, all_of_them: bool = False, stops_at_rest: bool = False) -> Played:
    """Simulate `count` iterations from rest (enough of them by default), or fewer if steps become steady.

    With `stops_at_rest`, one step is enough if nothing is under way at its end, because the next one is like it.
    """
    every, lag = within_reach(scene.every, scene.follower_lag)
    scene = scene._replace(every=every, follower_lag=lag)
    wanted = count or num_iterations(every, lag)
    state, step_ends = initial_state(scene, wanted), np.full(wanted, np.nan)
    fewest = wanted if all_of_them else 1 if stops_at_rest else _MIN_STEADY_STEPS
    num_steps = _play(scene, state, step_ends, fewest)
    return Played(step_ends[:num_steps], state.begun, state.ended, state.passed)


@borrows_elements
def _play(scene: Scene, state: PlayState, step_ends: Floats, fewest: int) -> int:
    """Simulate until the end or, after the fewest steps, until these are steady; return the number of steps."""
    num_iterations, num_steps = len(step_ends), 0
    # Steps are not steady if some work is not done in each of them. With long lags, steadiness cannot be seen so early.
    can_be_steady = fewest < num_iterations
    for every in scene.every:
        can_be_steady &= every == 1
    for lag in scene.follower_lag:
        can_be_steady &= lag <= 1
    for rank in range(len(scene.trains)):
        push(state.heap, 0.0, rank * NUM_KINDS + COMPUTED)
        push(state.heap, 0.0, rank * NUM_KINDS + WORKS)
    for lane in range(len(state.lanes)):
        push(state.heap, 0.0, lane * NUM_KINDS + ADVANCES)
    while True:
        value = pop(state.heap)
        if value < 0:
            break
        _happen(scene, state, value)
        if value % NUM_KINDS != COMPUTED:
            continue
        before = num_steps
        while num_steps < num_iterations and _end_step(scene, state, num_steps, step_ends):
            num_steps += 1
        if num_steps == num_iterations or (can_be_steady and _is_steady(step_ends, num_steps)):
            break
        if fewest == 1 and before == 0 and num_steps == 1 and can_be_steady and _is_at_rest(scene, state, step_ends):
            break
    return num_steps


@inlined
def _end_step(scene: Scene, state: PlayState, step: int, step_ends: Floats) -> bool:
    latest = 0.0
    for rank in range(len(scene.trains)):
        if scene.trains[rank]:
            if np.isnan(state.step_ends[step, rank]):
                return False
            latest = max(latest, state.step_ends[step, rank])
    step_ends[step] = latest
    return True


@inlined
def _is_at_rest(scene: Scene, state: PlayState, step_ends: Floats) -> bool:
    """Return whether all work of the first step is done at its end, at which all ranks are almost at the same time."""
    for rank in range(len(scene.trains)):
        if scene.trains[rank] and state.step_ends[0, rank] < (1 - _STEADY) * step_ends[0]:
            return False
    num_ended = 0
    for part in range(len(scene.parts)):
        num_ended += not np.isnan(state.ended[0, part])
    return num_ended == len(scene.parts)


@inlined
def _is_steady(step_ends: Floats, num_steps: int) -> bool:
    if num_steps < _MIN_STEADY_STEPS:
        return False
    newest = step_ends[num_steps - 1] - step_ends[num_steps - 2]
    before = step_ends[num_steps - 2] - (step_ends[num_steps - 3] if num_steps > 2 else 0.0)
    return bool(abs(newest - before) <= _STEADY * newest)


@inlined
def _happen(scene: Scene, state: PlayState, value: int) -> None:  # noqa: C901, PLR0912 - the list of all that may happen
    """Handle an event. Every function below has one caller, into which the compiler inlines it."""
    kind, what = value % NUM_KINDS, value // NUM_KINDS
    if kind in (BEGUN, TAKEN, GOES_ON):
        if kind == BEGUN:
            begin(scene, state, what)
        elif kind == TAKEN:
            state.parts[what].step += 1
        if kind != GOES_ON:
            row = scene.parts[what].first_take + what + state.parts[what].step
            state.parts[what].post = scene.first_post[row]
        go(scene, state, what)
    elif kind == LOOKS:
        look(scene, state, what)
    elif kind == SENDS:
        send(scene, state, what)
    elif kind == LEAVES:
        request_leaves(scene, state, what)
    elif kind == LINK:
        link_is_due(scene, state, what)
    elif kind in (REQUEST_CAME, MESSAGE_CAME):
        native, times = scene.channels[what].is_native, scene.times
        if kind == REQUEST_CAME:
            until = work(state.heap, state.ranks, state.processor_free, -1, times.asked[native], 0.0)
            is_wanted(scene, state, what, until)
        else:
            until = work(state.heap, state.ranks, state.processor_free, -1, times.arrived[native], 0.0)
            burn(scene, state, what, state.channels[what].arrived)
            is_heard(scene, state, what, until)
    elif kind == COMPUTED:
        state.ranks[what].until = np.inf
        _train(scene, state, what)
    elif kind == ADVANCES:
        advance(scene, state, what)
    elif kind == WORKS:
        _take_work(scene, state, what)
    elif kind == WORKED and state.ranks[what].left > 0.0:
        _work_on(scene, state, what)
    else:
        _end(scene, state, state.ranks[what].works_on if kind == WORKED else what)


# Finished parts, and the items that wait for them.


@inlined
def _end(scene: Scene, state: PlayState, part: int) -> None:
    """Finish a part: the items that wait for it have one wait less, and its thread continues."""
    facts, iteration = scene.parts[part], state.parts[part].iteration
    operation, rank = facts.operation, facts.rank
    state.ended[iteration, part] = state.heap.now[0]
    for position in range(scene.first_follower[operation], scene.first_follower[operation + 1]):
        later = iteration + scene.follower_lag[position]
        item = item_of(scene, scene.follower[position], rank, len(scene.trains))
        if item >= 0 and later < state.num_iterations:
            _count_down(scene, state, later, item)
    if scene.is_transfer[operation]:
        lane = rank * scene.num_lanes + scene.lane[operation]
        state.lanes[lane].num_under_way -= 1
        push(state.heap, state.heap.now[0], lane * NUM_KINDS + ADVANCES)
    else:
        state.ranks[rank].works_on = -1
        push(state.heap, state.heap.now[0], rank * NUM_KINDS + WORKS)


@inlined
def _count_down(scene: Scene, state: PlayState, iteration: int, item: int) -> None:
    state.unmet[iteration, item] -= 1
    if state.unmet[iteration, item] > 0:
        return
    num_parts, now = len(scene.parts), state.heap.now[0]
    if item >= num_parts:
        rank = (item - num_parts) % len(scene.trains)
        if np.isinf(state.ranks[rank].until):
            # If the rank does not stand at this gate, it remains where it is.
            state.ranks[rank].until = now
            push(state.heap, now, rank * NUM_KINDS + COMPUTED)
        return
    operation, rank = scene.parts[item].operation, scene.parts[item].rank
    if not is_due(scene, iteration, operation):
        return
    if scene.is_transfer[operation]:
        push(state.heap, now, (rank * scene.num_lanes + scene.lane[operation]) * NUM_KINDS + ADVANCES)
        return
    state.ready[rank, state.ranks[rank].num_ready] = iteration * state.num_items + item
    state.ranks[rank].num_ready += 1
    push(state.heap, now, rank * NUM_KINDS + WORKS)


@inlined
def _take_work(scene: Scene, state: PlayState, rank: int) -> None:
    """Begin the next local operation of a rank: of the oldest iteration, and in it of the first message."""
    if state.ranks[rank].works_on >= 0 or state.ranks[rank].num_ready == 0:
        return
    chosen, num_ready = 0, state.ranks[rank].num_ready
    for place in range(1, num_ready):
        if _is_before(scene, state, state.ready[rank, place], state.ready[rank, chosen]):
            chosen = place
    code = state.ready[rank, chosen]
    state.ready[rank, chosen] = state.ready[rank, num_ready - 1]
    state.ranks[rank].num_ready -= 1
    iteration, part = code // state.num_items, code % state.num_items
    state.begun[iteration, part] = state.heap.now[0]
    state.parts[part].iteration = iteration
    state.ranks[rank].works_on = part
    facts = scene.parts[part]
    in_python = min(facts.work, scene.times.local)
    state.ranks[rank].left = facts.work - in_python
    until = work(state.heap, state.ranks, state.processor_free, facts.rank, in_python, in_python)
    push(state.heap, until + (facts.seconds if facts.work == in_python else 0.0), rank * NUM_KINDS + WORKED)


@inlined
def _work_on(scene: Scene, state: PlayState, rank: int) -> None:
    """Continue a local operation's work in torch, slice by slice if ranks share the processors."""
    ours = state.ranks[rank]
    seconds = min(ours.left, _SLICE_SECONDS) if len(state.processor_free) > 0 else ours.left
    ours.left -= seconds
    until = work(state.heap, state.ranks, state.processor_free, -1, seconds, 0.0)
    rest = scene.parts[ours.works_on].seconds if ours.left == 0.0 else 0.0
    push(state.heap, until + rest, rank * NUM_KINDS + WORKED)


@inlined
def _is_before(scene: Scene, state: PlayState, one: int, other: int) -> bool:
    ours, theirs = one // state.num_items, other // state.num_items
    if ours != theirs:
        return ours < theirs
    ours, theirs = one % state.num_items, other % state.num_items
    first, second = scene.urgency[scene.parts[ours].operation], scene.urgency[scene.parts[theirs].operation]
    if first != second:
        return bool(first < second)
    return ours < theirs


@inlined
def _train(scene: Scene, state: PlayState, rank: int) -> None:
    """Continue the program of a rank until it takes time or must wait."""
    ours = state.ranks[rank]
    if not scene.trains[rank]:
        return
    # Events here may open gates of this rank; this value keeps them from starting the program twice.
    ours.until = 0.0
    num_parts, num_ranks = len(scene.parts), len(scene.trains)
    while ours.iteration < state.num_iterations:
        place, iteration = ours.at, ours.iteration
        step, argument = scene.program[place], scene.program_argument[place]
        seconds = scene.program_seconds[rank, place]
        if step == WAIT and state.unmet[iteration, num_parts + argument * num_ranks + rank] > 0:
            if scene.right_of_way == GRADIENTS_FIRST and place == 0:
                let_reads_look(scene, state, rank)
            break
        ours.at = (place + 1) % len(scene.program)
        state.passed[iteration, rank, place] = state.heap.now[0]
        if step == EVENT:
            _tell(scene, state, iteration, argument, rank)
        elif step == STEP_ENDS:
            state.step_ends[iteration, rank] = state.heap.now[0]
            ours.iteration += 1
        elif step in (COMPUTE, WORK):
            if step == WORK:
                ours.until = work(state.heap, state.ranks, state.processor_free, rank, seconds, seconds)
            else:
                # Small time losses to other ranks are made up for, as in replayed compute.
                if state.heap.now[0] - ours.pace > scene.times.slack:
                    ours.pace = state.heap.now[0]
                ours.pace += seconds
                ours.until = max(state.heap.now[0], ours.pace)
            state.passed[iteration, rank, place] = ours.until
            push(state.heap, ours.until, rank * NUM_KINDS + COMPUTED)
            return
    ours.until = np.inf


@inlined
def _tell(scene: Scene, state: PlayState, iteration: int, event: int, rank: int) -> None:
    """Signal an event of a rank. The first rank's steps are also events on servers."""
    num_ranks, is_step = len(scene.trains), event >= scene.num_events - 2
    for position in range(scene.first_on_event[event], scene.first_on_event[event + 1]):
        for other in range(num_ranks):
            if other == rank or (rank == 0 and is_step and not scene.trains[other]):
                item = item_of(scene, scene.on_event[position], other, num_ranks)
                if item >= 0:
                    _count_down(scene, state, iteration, item)
