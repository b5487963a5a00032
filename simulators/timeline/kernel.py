"""The timeline: a plan's operations on ranks and links, event after event. Compiled.

Training of each class goes through its program; lanes take their transfers in order, one at a time; local work is done
by one thread a class, of the oldest iteration and the first message first. A transfer begins when it has nothing to
wait for and is the next in its lane on all its members. Between two moments at which something begins or ends nothing
changes, so time goes from one to the next.

All transfers under way become faster together, each as its own heaviest load by connection allows, until a link is
full; those that use it stay as they are, the others go on. That is max-min fairness among connections, where a transfer
loads all its links in proportion, for its members wait for one another. None is faster than its processors can be.

A *code* is an item in an iteration, `iteration * num_items + item`; what training makes happen has codes after those.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.compiled import called, inner
from autosync.simulators.timeline.problem import COMPUTE, EVENT, WAIT, Floats, Outcome, Problem, State

_STEADY = 1e-3
_MIN_STEADY_STEPS = 4
# Of a transfer: what is left of so small a share of it is rounding.
_ROUNDING = 1e-9
_FULL = 1.0 - 1e-9


@called
def simulate(problem: Problem, num_iterations: int) -> Outcome:
    """So many iterations from rest, or fewer where steps have become steady."""
    state = _at_rest(problem, num_iterations)
    # What is not done in every step has no steady ones, and what waits for long ago none that can be told so early.
    can_be_steady = problem.every.max() == 1
    for lag in problem.waiting_lag:
        can_be_steady &= lag <= 1
    num_steps = 0
    while True:
        _go_on(problem, state)
        while num_steps < num_iterations and _end_step(problem, state, num_steps):
            num_steps += 1
        if num_steps == num_iterations or (can_be_steady and _is_steady(state.step_ends, num_steps)):
            return Outcome(state.step_ends[:num_steps], state.begun, state.ended)
        if not _pass_time(problem, state):
            return Outcome(state.step_ends[:num_steps], state.begun, state.ended)


@inner
def _at_rest(problem: Problem, num_iterations: int) -> State:
    num_classes, num_instances = len(problem.trains), len(problem.is_transfer)
    num_items = num_instances + num_classes * problem.num_gates
    num_queues = num_classes * problem.num_lanes
    num_codes = (num_items + num_classes * problem.num_events) * num_iterations
    state = State(
        num_iterations=num_iterations,
        num_items=num_items,
        now=np.zeros(1),
        unmet=np.zeros((num_iterations, num_items), np.int64),
        num_met=np.zeros((num_iterations, num_instances), np.int64),
        begun=np.full((num_iterations, num_instances), np.nan),
        ended=np.full((num_iterations, num_instances), np.nan),
        step_ends=np.full(num_iterations, np.nan),
        head=problem.first_queued[:-1].copy(),
        head_iteration=np.zeros(num_queues, np.int64),
        num_under_way=np.zeros(num_queues, np.int64),
        trains_until=np.full(num_classes, np.inf),
        resumes=problem.trains.copy(),
        at=np.zeros(num_classes, np.int64),
        iteration=np.zeros(num_classes, np.int64),
        class_ends=np.full((num_iterations, num_classes), np.nan),
        works_until=np.full(num_classes, np.inf),
        works_on=np.full(num_classes, -1, np.int64),
        ready=np.empty((num_classes, num_iterations * num_instances), np.int64),
        num_ready=np.zeros(num_classes, np.int64),
        active=np.empty(num_instances + 1, np.int64),
        flows_from=np.empty(num_instances + 1),
        left=np.empty(num_instances + 1),
        senders_left=np.zeros(num_instances + 1, np.bool_),
        rate=np.zeros(num_instances + 1),
        num_active=np.zeros(1, np.int64),
        todo=np.empty(num_codes, np.int64),
        num_todo=np.zeros(1, np.int64),
    )
    _count_waits(problem, state)
    for queue in range(num_queues):
        _stand(problem, state, queue)
    for iteration in range(num_iterations):
        for instance in range(num_instances):
            if state.unmet[iteration, instance] == 0 and not problem.is_transfer[instance]:
                _release(problem, state, iteration, instance)
    return state


@inner
def _count_waits(problem: Problem, state: State) -> None:
    """What each item waits for in each iteration: nothing of iterations before the first, nor of what is not due."""
    # One by one: for what may go wrong with whole rows much more would be compiled.
    for iteration in range(state.num_iterations):
        for item in range(state.num_items):
            state.unmet[iteration, item] = problem.num_waits[item]
    for item in range(len(problem.is_transfer)):
        for position in range(problem.first_waiting[item], problem.first_waiting[item + 1]):
            lag = problem.waiting_lag[position]
            for iteration in range(state.num_iterations - lag):
                if _is_due(problem, iteration, item):
                    state.unmet[iteration + lag, problem.waiting[position]] += 1


@inner
def _is_due(problem: Problem, iteration: int, instance: int) -> bool:
    return bool((iteration + 1) % problem.every[instance] == 0)


# What happens at one moment.


@inner
def _go_on(problem: Problem, state: State) -> None:
    """All that can happen now, until time must pass."""
    num_classes = len(problem.trains)
    moves = True
    while moves:
        moves = False
        while state.num_todo[0] > 0:
            state.num_todo[0] -= 1
            _tell(problem, state, state.todo[state.num_todo[0]])
        for rank_class in range(num_classes):
            if state.resumes[rank_class]:
                state.resumes[rank_class] = False
                _train(problem, state, rank_class)
                moves = True
            if state.works_on[rank_class] < 0 and state.num_ready[rank_class] > 0:
                _take_work(problem, state, rank_class)
                moves = True


@inner
def _tell(problem: Problem, state: State, code: int) -> None:
    """Something is over, or has happened: who waits for it has one thing less to wait for."""
    first_event = state.num_items * state.num_iterations
    if code >= first_event:
        num_events = len(problem.trains) * problem.num_events
        iteration, event = (code - first_event) // num_events, (code - first_event) % num_events
        for position in range(problem.first_on_event[event], problem.first_on_event[event + 1]):
            _count_down(problem, state, iteration, problem.on_event[position])
        return
    iteration, item = code // state.num_items, code % state.num_items
    for position in range(problem.first_waiting[item], problem.first_waiting[item + 1]):
        later = iteration + problem.waiting_lag[position]
        if later < state.num_iterations:
            _count_down(problem, state, later, problem.waiting[position])
    if item < len(problem.is_transfer) and problem.is_transfer[item]:
        _make_room(problem, state, item, senders=False)


@inner
def _make_room(problem: Problem, state: State, item: int, senders: bool) -> None:  # noqa: FBT001 - numba has no other
    """A transfer is over for its members, or for those that only send: their lanes go on."""
    for position in range(problem.first_member[item], problem.first_member[item + 1]):
        if problem.only_sends[position] == senders:
            queue = problem.member[position] * problem.num_lanes + problem.lane[item]
            state.num_under_way[queue] -= 1
            if state.num_under_way[queue] == 0:
                state.head[queue] += 1
                _stand(problem, state, queue)


@inner
def _count_down(problem: Problem, state: State, iteration: int, item: int) -> None:
    state.unmet[iteration, item] -= 1
    if state.unmet[iteration, item] == 0:
        _release(problem, state, iteration, item)


@inner
def _release(problem: Problem, state: State, iteration: int, item: int) -> None:
    """An item has nothing more to wait for."""
    num_instances = len(problem.is_transfer)
    if item >= num_instances:
        rank_class = (item - num_instances) // problem.num_gates
        # If it does not stand there it goes on standing where it is: it looks again.
        if np.isinf(state.trains_until[rank_class]) and state.iteration[rank_class] < state.num_iterations:
            state.resumes[rank_class] = problem.trains[rank_class]
    elif not _is_due(problem, iteration, item):
        return
    elif problem.is_transfer[item]:
        _begin_if_met(problem, state, iteration, item)
    else:
        rank_class = problem.member[problem.first_member[item]]
        state.ready[rank_class, state.num_ready[rank_class]] = iteration * state.num_items + item
        state.num_ready[rank_class] += 1


@inner
def _stand(problem: Problem, state: State, queue: int) -> None:
    """On to the next transfer of a class in a lane, in this iteration or a later one; the class is there now."""
    begin, end = problem.first_queued[queue], problem.first_queued[queue + 1]
    rank_class = queue // problem.num_lanes
    while begin < end and state.head_iteration[queue] < state.num_iterations:
        if state.head[queue] == end:
            state.head[queue] = begin
            state.head_iteration[queue] += 1
            continue
        iteration, number = state.head_iteration[queue], problem.queued[state.head[queue]]
        first, last = problem.first_instance[number], problem.first_instance[number + 1]
        if _is_due(problem, iteration, first):
            for item in range(first, last):
                state.num_under_way[queue] += _has_part(problem, item, rank_class)
            for item in range(first, last):
                if _has_part(problem, item, rank_class):
                    state.num_met[iteration, item] += 1
                    _begin_if_met(problem, state, iteration, item)
            return
        state.head[queue] += 1


@inner
def _has_part(problem: Problem, item: int, rank_class: int) -> bool:
    for position in range(problem.first_member[item], problem.first_member[item + 1]):
        if problem.member[position] == rank_class:
            return True
    return False


@inner
def _begin_if_met(problem: Problem, state: State, iteration: int, item: int) -> None:
    num_members = problem.first_member[item + 1] - problem.first_member[item]
    if state.unmet[iteration, item] > 0 or state.num_met[iteration, item] < num_members:
        return
    place = state.num_active[0]
    state.active[place] = iteration * state.num_items + item
    state.flows_from[place] = state.now[0] + problem.seconds[item]
    state.left[place] = 1.0
    state.senders_left[place] = problem.leave_at[item] < 0.0
    state.rate[place] = 0.0
    state.num_active[0] += 1
    state.begun[iteration, item] = state.now[0]


@inner
def _train(problem: Problem, state: State, rank_class: int) -> None:
    """The program goes on until it takes time or must wait."""
    while state.iteration[rank_class] < state.num_iterations:
        place, iteration = state.at[rank_class], state.iteration[rank_class]
        step, argument = problem.program[place], problem.program_argument[place]
        if step == WAIT:
            gate = len(problem.is_transfer) + rank_class * problem.num_gates + argument
            if state.unmet[iteration, gate] > 0:
                return
        elif step == EVENT:
            event = rank_class * problem.num_events + argument
            num_events = len(problem.trains) * problem.num_events
            _do(state, state.num_items * state.num_iterations + iteration * num_events + event)
        elif step != COMPUTE:
            state.class_ends[iteration, rank_class] = state.now[0]
            state.iteration[rank_class] += 1
        state.at[rank_class] = (place + 1) % len(problem.program)
        if step == COMPUTE:
            state.trains_until[rank_class] = state.now[0] + problem.program_seconds[place]
            return


@inner
def _take_work(problem: Problem, state: State, rank_class: int) -> None:
    """Of what is ready the oldest, and of that the first message's first."""
    chosen, num_ready = 0, state.num_ready[rank_class]
    for place in range(1, num_ready):
        if _is_before(problem, state, state.ready[rank_class, place], state.ready[rank_class, chosen]):
            chosen = place
    code = state.ready[rank_class, chosen]
    state.ready[rank_class, chosen] = state.ready[rank_class, num_ready - 1]
    state.num_ready[rank_class] -= 1
    iteration, item = code // state.num_items, code % state.num_items
    state.begun[iteration, item] = state.now[0]
    state.works_on[rank_class] = code
    state.works_until[rank_class] = state.now[0] + problem.seconds[item]


@inner
def _is_before(problem: Problem, state: State, one: int, other: int) -> bool:
    ours, theirs = one // state.num_items, other // state.num_items
    if ours != theirs:
        return ours < theirs
    ours, theirs = one % state.num_items, other % state.num_items
    if problem.urgency[ours] != problem.urgency[theirs]:
        return bool(problem.urgency[ours] < problem.urgency[theirs])
    return ours < theirs


@inner
def _do(state: State, code: int) -> None:
    state.todo[state.num_todo[0]] = code
    state.num_todo[0] += 1


# Time.


@inner
def _pass_time(problem: Problem, state: State) -> bool:
    """On to the next moment; False: nothing will happen any more."""
    _share(problem, state)
    elapsed = _until_next_moment(problem, state)
    if np.isinf(elapsed):
        return False
    state.now[0] += elapsed
    for place in range(state.num_active[0]):
        state.left[place] -= state.rate[place] * elapsed
    _let_senders_go(problem, state)
    for rank_class in range(len(problem.trains)):
        if state.trains_until[rank_class] <= state.now[0]:
            state.trains_until[rank_class] = np.inf
            state.resumes[rank_class] = True
        if state.works_until[rank_class] <= state.now[0]:
            state.works_until[rank_class] = np.inf
            _end(state, state.works_on[rank_class])
            state.works_on[rank_class] = -1
    _end_transfers(state)
    return True


@inner
def _let_senders_go(problem: Problem, state: State) -> None:
    for place in range(state.num_active[0]):
        item = state.active[place] % state.num_items
        if state.senders_left[place] or state.flows_from[place] > state.now[0]:
            continue
        if state.left[place] <= problem.leave_at[item] + _ROUNDING:
            state.senders_left[place] = True
            _make_room(problem, state, item, senders=True)


@inner
def _until_next_moment(problem: Problem, state: State) -> float:
    """Seconds; reckoned by themselves, for what a tiny transfer has left may be less than the clock can tell."""
    now = state.now[0]
    elapsed = min(state.trains_until.min(), state.works_until.min()) - now
    for place in range(state.num_active[0]):
        if state.flows_from[place] > now:
            elapsed = min(elapsed, state.flows_from[place] - now)
        elif state.rate[place] > 0.0:
            until = 0.0 if state.senders_left[place] else problem.leave_at[state.active[place] % state.num_items]
            elapsed = min(elapsed, max(0.0, state.left[place] - until) / state.rate[place])
    return max(0.0, float(elapsed))


@inner
def _end_transfers(state: State) -> None:
    place = 0
    while place < state.num_active[0]:
        if state.flows_from[place] > state.now[0] or state.left[place] > _ROUNDING:
            place += 1
            continue
        _end(state, state.active[place])
        state.num_active[0] -= 1
        last = state.num_active[0]
        state.active[place] = state.active[last]
        state.flows_from[place] = state.flows_from[last]
        state.left[place] = state.left[last]
        state.senders_left[place] = state.senders_left[last]
        state.rate[place] = state.rate[last]


@inner
def _end(state: State, code: int) -> None:
    state.ended[code // state.num_items, code % state.num_items] = state.now[0]
    _do(state, code)


@inner
def _end_step(problem: Problem, state: State, step: int) -> bool:
    """Whether a step is over on all that train; then when."""
    latest = 0.0
    for rank_class in range(len(problem.trains)):
        if problem.trains[rank_class]:
            if np.isnan(state.class_ends[step, rank_class]):
                return False
            latest = max(latest, state.class_ends[step, rank_class])
    state.step_ends[step] = latest
    return True


@inner
def _is_steady(step_ends: Floats, num_steps: int) -> bool:
    if num_steps < _MIN_STEADY_STEPS:
        return False
    newest = step_ends[num_steps - 1] - step_ends[num_steps - 2]
    before = step_ends[num_steps - 2] - step_ends[num_steps - 3]
    return bool(abs(newest - before) <= _STEADY * newest)


# Rates.


@inner
def _share(problem: Problem, state: State) -> None:
    """Set the rate (shares of a transfer a second) of all transfers whose bytes flow now."""
    free = problem.capacity.copy()
    pace = np.zeros(state.num_active[0])
    for place in range(len(pace)):
        state.rate[place] = 0.0
        if state.flows_from[place] <= state.now[0]:
            pace[place] = _pace(problem, state.active[place] % state.num_items)
    while pace.any():
        demand = _demand(problem, state, pace)
        level = _level(problem, state, pace, free, demand)
        free -= level * demand
        for place in range(len(pace)):
            if pace[place] > 0.0:
                item = state.active[place] % state.num_items
                state.rate[place] += level * pace[place]
                if _is_held(problem, free, item) or state.rate[place] >= _most(problem, item) * _FULL:
                    pace[place] = 0.0


@inner
def _pace(problem: Problem, item: int) -> float:
    """How fast a transfer becomes faster: by one byte a second and connection where its load is heaviest."""
    heaviest = 0.0
    for use in range(problem.first_use[item], problem.first_use[item + 1]):
        heaviest = max(heaviest, problem.use_bytes[use] / problem.use_connections[use])
    return 1.0 / heaviest if heaviest > 0.0 else 1.0


@inner
def _demand(problem: Problem, state: State, pace: Floats) -> Floats:
    """By how much each link's load grows."""
    demand = np.zeros(len(problem.capacity))
    for place in range(len(pace)):
        if pace[place] > 0.0:
            item = state.active[place] % state.num_items
            for use in range(problem.first_use[item], problem.first_use[item + 1]):
                demand[problem.use_link[use]] += problem.use_bytes[use] * pace[place]
    return demand


@inner
def _level(problem: Problem, state: State, pace: Floats, free: Floats, demand: Floats) -> float:
    """How far all that grow can grow until a link is full or one of them is as fast as it can be."""
    level = np.inf
    for link in range(len(free)):
        if demand[link] > 0.0:
            level = min(level, free[link] / demand[link])
    for place in range(len(pace)):
        if pace[place] > 0.0:
            room = _most(problem, state.active[place] % state.num_items) - state.rate[place]
            level = min(level, room / pace[place])
    return level


@inner
def _most(problem: Problem, item: int) -> float:
    """The rate at which nothing but the processors holds a transfer."""
    return 1.0 / max(float(problem.fastest[item]), _ROUNDING)


@inner
def _is_held(problem: Problem, free: Floats, item: int) -> bool:
    """Whether a link that it uses is full."""
    for use in range(problem.first_use[item], problem.first_use[item + 1]):
        link = problem.use_link[use]
        if problem.use_bytes[use] > 0.0 and free[link] <= problem.capacity[link] * (1.0 - _FULL):
            return True
    return False
