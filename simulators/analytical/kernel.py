"""The analytical kernel: units of many strategies through their templates' steps, each scheduled once. Compiled.

Where the timeline plays who sends how fast at each moment, this only keeps books: until when each lane is taken, each
link, the processors and the threads of ranks. A transfer begins when its lane is free and what it needs is there; of
all that are next in their lanes the one that can begin first is scheduled first. It takes what it takes with everything
to itself, or, where a link has been promised to others, until these and it have passed. A unit of several slices is a
pipeline: its next step begins when the first slice is through.

With overlap into the next forward pass one step follows another until they are alike; else a step begins from rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from autosync.simulators.analytical.tables import Flags, Floats, Given, Integers

_MAX_STEPS = 4
_STEADY = 2e-3
_ROUNDING = 1e-9

_compiled = numba.njit(cache=True)


class State(NamedTuple):
    """Where the books of one strategy stand; units and messages are counted within it.

    - units: `ready_first`, `ready_last`, when the gradients of their first and last slice are, from the beginning of
      backward on; `use`, and all in the `order` of use; `older`, the one before in its message; the `step` that they
      come to next, whether they have begun to be settled (`settles`), and when their `first` and `last` slice go on;
    - messages: their `newest` unit and the first `use`; how many units are not collected yet, since when;
    - lanes: until when they are taken; their jobs in order, and which is `next`; a job is `unit * num_steps + step`;
    - resources: until when they are taken (`free`);
    - variables: `gate`, when the next forward pass may use each;
    - `rare`, whether now and then is now; `left`: units that are not collected, and those that backward waits for;
      `times`: see below.
    """

    num_steps: int
    ready_first: Floats
    ready_last: Floats
    use: Integers
    order: Integers
    older: Integers
    step: Integers
    settles: Flags
    first: Floats
    last: Floats
    newest: Integers
    first_use: Integers
    num_uncollected: Integers
    collected: Floats
    lane_free: Floats
    head: Integers
    tail: Integers
    next: Integers
    after: Integers
    free: Floats
    gate: Floats
    bucket: Integers
    rare: Flags
    left: Integers
    times: Floats


_ANY, _AWAITED = range(2)
# When the last unit was collected, and the last that backward waits for; what settles may begin; the last one has.
_COLLECTED, _RETURNED, _OPENED, _SETTLED = range(4)


@_compiled
def step_seconds(given: Given) -> Floats:
    """The seconds of a step by each strategy."""
    found = np.empty(len(given.units.forward))
    state = _state(given)
    for number in range(len(found)):
        period = _period(given, number)
        state.rare[0] = True
        found[number] = _seconds(given, state, number)
        if period > 1:
            state.rare[0] = False
            usual = _seconds(given, state, number)
            found[number] = usual + (found[number] - usual) / period
    return found


@_compiled
def _state(given: Given) -> State:
    """Books that have room for the largest of the strategies."""
    prices, units = given.prices, given.units
    num_units, num_lanes, num_steps, num_variables = 1, 1, 1, len(given.training.ready)
    for number in range(len(units.forward)):
        num_units = max(num_units, units.first_unit[number + 1] - units.first_unit[number])
        num_lanes = max(num_lanes, units.num_lanes[number])
    for template in range(len(prices.by_slice)):
        num_steps = max(num_steps, prices.first_step[template + 1] - prices.first_step[template])
    num_lanes *= prices.num_stages
    return State(
        num_steps=num_steps,
        ready_first=np.empty(num_units),
        ready_last=np.empty(num_units),
        use=np.empty(num_units, np.int64),
        order=np.empty(num_units, np.int64),
        older=np.empty(num_units, np.int64),
        step=np.empty(num_units, np.int64),
        settles=np.empty(num_units, np.bool_),
        first=np.empty(num_units),
        last=np.empty(num_units),
        newest=np.empty(num_units, np.int64),
        first_use=np.empty(num_units, np.int64),
        num_uncollected=np.empty(num_units, np.int64),
        collected=np.empty(num_units),
        lane_free=np.empty(num_lanes),
        head=np.empty(num_lanes, np.int64),
        tail=np.empty(num_lanes, np.int64),
        next=np.empty(num_lanes, np.int64),
        after=np.empty(num_units * num_steps, np.int64),
        free=np.empty(len(prices.kind)),
        gate=np.empty(num_variables),
        bucket=np.empty(num_variables + 2, np.int64),
        rare=np.empty(1, np.bool_),
        left=np.empty(2, np.int64),
        times=np.empty(4),
    )


@_compiled
def _period(given: Given, number: int) -> int:
    """In how many steps everything that is done now and then is done once."""
    prices, units, period = given.prices, given.units, 1
    for unit in range(units.first_unit[number], units.first_unit[number + 1]):
        period = max(period, prices.period[units.template[unit]])
    return period


@_compiled
def _seconds(given: Given, state: State, number: int) -> float:
    """A step among others like it."""
    state.lane_free[:] = 0.0
    state.free[:] = 0.0
    state.gate[:] = 0.0
    _place(given, state, number)
    _queue(given, state, number)
    before, taken = 0.0, 0.0
    for count in range(_MAX_STEPS):
        ended = _step(given, state, number, before)
        latest, before = ended - before, ended
        if not given.units.forward[number] or (count > 1 and abs(latest - taken) <= _STEADY * taken):
            return latest
        # Where steps go up and down, two of them tell more than one.
        taken = latest if count < _MAX_STEPS - 1 else 0.5 * (taken + latest)
    return taken


# What is the same in every step.


@_compiled
def _place(given: Given, state: State, number: int) -> None:
    """When units are ready, and their order by use: their message's, or their own where slices are settled alone."""
    units, training, num_variables = given.units, given.training, len(given.training.ready)
    begin, num_units = units.first_unit[number], units.first_unit[number + 1] - units.first_unit[number]
    state.first_use[: units.num_messages[number]] = num_variables
    state.newest[: units.num_messages[number]] = -1
    for here in range(num_units):
        unit, message = begin + here, units.message[begin + here]
        last = units.first_piece[unit + 1] - 1
        state.ready_last[here] = state.ready_first[here] = training.ready[units.variable[last]]
        state.use[here] = num_variables
        first_slice = 1.0 / units.num_slices[unit] - _ROUNDING
        for piece in range(last, units.first_piece[unit] - 1, -1):
            if units.until[piece] >= first_slice:
                state.ready_first[here] = training.ready[units.variable[piece]]
            state.use[here] = min(state.use[here], training.use[units.variable[piece]])
        state.first_use[message] = min(state.first_use[message], state.use[here])
        state.older[here], state.newest[message] = state.newest[message], here
    state.bucket[:] = 0
    for here in range(num_units):
        if not given.prices.by_slice[units.template[begin + here]]:
            state.use[here] = state.first_use[units.message[begin + here]]
        state.bucket[state.use[here] + 1] += 1
    for use in range(num_variables + 1):
        state.bucket[use + 1] += state.bucket[use]
    for here in range(num_units):
        state.order[state.bucket[state.use[here]]] = here
        state.bucket[state.use[here]] += 1


@_compiled
def _queue(given: Given, state: State, number: int) -> None:
    """The jobs of each lane: what collects in the order of readiness, then what settles in the order of use."""
    prices, units = given.prices, given.units
    begin, num_units = units.first_unit[number], units.first_unit[number + 1] - units.first_unit[number]
    state.head[:] = -1
    for settles in (False, True):
        for place in range(num_units):
            here = state.order[place] if settles else place
            template = units.template[begin + here]
            first, last = prices.first_step[template], prices.first_step[template + 1]
            middle = first + prices.num_collecting[template]
            for step in range(middle if settles else first, last if settles else middle):
                if prices.is_transfer[step] and _is_due(given, state, step):
                    lane = units.lane[begin + here] + prices.stage[step] * units.num_lanes[number]
                    job = here * state.num_steps + step - first
                    if state.head[lane] < 0:
                        state.head[lane] = job
                    else:
                        state.after[state.tail[lane]] = job
                    state.tail[lane], state.after[job] = job, -1


@_compiled
def _is_due(given: Given, state: State, step: int) -> bool:
    return bool(state.rare[0] or given.prices.every[step] == 1)


# A step.


@_compiled
def _step(given: Given, state: State, number: int, now: float) -> float:
    """A forward pass and all that follows it; when the next one may begin."""
    forward, norm = given.units.forward[number], given.training.norm
    num_units = given.units.first_unit[number + 1] - given.units.first_unit[number]
    called = _pass_forward(given, state, now) + given.training.backward
    _begin(given, state, number, called - given.training.backward)
    for here in range(num_units):
        _go_on(given, state, number, here)
    is_open = False
    while True:
        if not is_open and (forward or state.left[_AWAITED] == 0) and (norm == 0.0 or state.left[_ANY] == 0):
            is_open = True
            called = called if forward else max(called, state.times[_RETURNED])
            state.times[_OPENED] = called if norm == 0.0 else max(called, state.times[_COLLECTED] + norm)
            for place in range(num_units):
                _settle(given, state, number, state.order[place])
        lane = _soonest(given, state, number)
        if lane < 0:
            break
        here = state.next[lane] // state.num_steps
        state.next[lane] = state.after[state.next[lane]]
        _transfer(given, state, number, here, lane)
        if _go_on(given, state, number, here) and is_open:
            fellow = state.newest[given.units.message[given.units.first_unit[number] + here]]
            while fellow >= 0:
                _settle(given, state, number, fellow)
                fellow = state.older[fellow]
    if forward:
        return called
    return max(called + _users_update(given, number), state.times[_SETTLED])


@_compiled
def _pass_forward(given: Given, state: State, now: float) -> float:
    """Uses wait for their gates; when backward begins."""
    training = given.training
    for place in range(len(training.seconds)):
        if training.waits_for[place] >= 0:
            now = max(now, state.gate[training.waits_for[place]])
        now += training.seconds[place]
    return now + training.between


@_compiled
def _begin(given: Given, state: State, number: int, now: float) -> None:
    """Backward begins now."""
    units, num_messages = given.units, given.units.num_messages[number]
    begin, num_units = units.first_unit[number], units.first_unit[number + 1] - units.first_unit[number]
    state.next[:] = state.head
    state.gate[:] = 0.0
    state.times[:] = 0.0
    state.left[_ANY], state.left[_AWAITED] = num_units, 0
    state.num_uncollected[:num_messages] = 0
    state.collected[:num_messages] = 0.0
    for here in range(num_units):
        state.step[here] = 0
        state.settles[here] = False
        state.first[here] = now + state.ready_first[here]
        state.last[here] = now + state.ready_last[here]
        state.num_uncollected[units.message[begin + here]] += 1
        state.left[_AWAITED] += given.prices.everywhere[units.template[begin + here]]


@_compiled
def _go_on(given: Given, state: State, number: int, here: int) -> bool:
    """A unit does its local work up to its next transfer, or until all is done; whether it has just been collected."""
    prices, units, unit = given.prices, given.units, given.units.first_unit[number] + here
    template = units.template[unit]
    first, last = prices.first_step[template], prices.first_step[template + 1]
    while True:
        if state.step[here] == prices.num_collecting[template] and not state.settles[here]:
            _collect(given, state, unit, here)
            return True
        step = first + state.step[here]
        if step == last:
            break
        if _is_due(given, state, step):
            if prices.is_transfer[step]:
                return False
            if units.forward[number] or not prices.is_users[step]:
                _work(given, state, unit, here, step)
        state.step[here] += 1
    state.times[_SETTLED] = max(state.times[_SETTLED], state.last[here])
    if prices.awaited[template]:
        for piece in range(units.first_piece[unit], units.first_piece[unit + 1]):
            through = state.first[here] + units.until[piece] * (state.last[here] - state.first[here])
            variable = units.variable[piece]
            state.gate[variable] = max(state.gate[variable], through)
    return False


@_compiled
def _collect(given: Given, state: State, unit: int, here: int) -> None:
    """A unit's gradients are summed, wherever they are updated."""
    message, last = given.units.message[unit], state.last[here]
    state.left[_ANY] -= 1
    state.times[_COLLECTED] = max(state.times[_COLLECTED], last)
    state.num_uncollected[message] -= 1
    state.collected[message] = max(state.collected[message], last)
    if given.prices.everywhere[given.units.template[unit]]:
        state.left[_AWAITED] -= 1
        state.times[_RETURNED] = max(state.times[_RETURNED], last)


@_compiled
def _settle(given: Given, state: State, number: int, here: int) -> None:
    """A unit goes on to its update, where it has been collected and with it all that is updated at once."""
    unit = given.units.first_unit[number] + here
    template, message = given.units.template[unit], given.units.message[unit]
    if state.settles[here] or state.step[here] != given.prices.num_collecting[template]:
        return
    begins = state.times[_OPENED]
    if not given.prices.by_slice[template]:
        if state.num_uncollected[message] > 0:
            return
        begins = max(begins, state.collected[message])
    state.settles[here] = True
    state.first[here] = max(state.first[here], begins)
    state.last[here] = max(state.last[here], begins)
    _go_on(given, state, number, here)


@_compiled
def _users_update(given: Given, number: int) -> float:
    """What the user's optimizer takes for what it updates."""
    prices, units, elements = given.prices, given.units, 0.0
    for unit in range(units.first_unit[number], units.first_unit[number + 1]):
        template = units.template[unit]
        for step in range(prices.first_step[template], prices.first_step[template + 1]):
            if prices.is_users[step]:
                elements += _amount(given, unit, step)
    return elements * given.training.update


# What things take.


@_compiled
def _soonest(given: Given, state: State, number: int) -> int:
    """The lane whose next job can begin first, of equals the one of the higher priority; -1: none is left."""
    units, begin = given.units, given.units.first_unit[number]
    best, best_start, best_priority = -1, np.inf, 0
    for lane in range(units.num_lanes[number] * given.prices.num_stages):
        job = state.next[lane]
        if job < 0:
            continue
        here = job // state.num_steps
        template = units.template[begin + here]
        is_there = state.step[here] == job - here * state.num_steps
        if not is_there or (state.step[here] >= given.prices.num_collecting[template] and not state.settles[here]):
            continue
        start, priority = max(state.lane_free[lane], state.first[here]), units.priority[begin + here]
        if start < best_start or (start == best_start and priority < best_priority):
            best, best_start, best_priority = lane, start, priority
    return best


@_compiled
def _amount(given: Given, unit: int, step: int) -> float:
    """How much of a unit a step works on."""
    amount = given.units.amount[unit, given.prices.measure[step]]
    return float(amount * given.units.item_bytes[unit] if given.prices.own_items[step] else amount)


@_compiled
def _transfer(given: Given, state: State, number: int, here: int, lane: int) -> None:
    """A unit's next step takes its lane and its links."""
    prices, units, unit = given.prices, given.units, given.units.first_unit[number] + here
    step = prices.first_step[units.template[unit]] + state.step[here]
    slices, amount = units.num_slices[unit], _amount(given, unit, step)
    start = max(state.lane_free[lane], state.first[here])
    wire = prices.unit[step] * amount
    alone = slices * prices.fixed[step] + wire
    end = max(start + alone, state.last[here] + alone / slices)
    end = _take(given, state, step, start + prices.fixed[step], end, slices, amount)
    state.lane_free[lane] = end - min(wire / slices, prices.ahead[step])
    state.first[here] = start + (end - start) / slices
    state.last[here] = end
    state.step[here] += 1


@_compiled
def _work(given: Given, state: State, unit: int, here: int, step: int) -> None:
    """Local work takes the threads of those who do it."""
    slices, amount = given.units.num_slices[unit], _amount(given, unit, step)
    alone = slices * given.prices.fixed[step] + given.prices.unit[step] * amount
    end = _take(given, state, step, state.first[here], state.last[here] + alone / slices, slices, amount)
    state.first[here] = min(end, state.first[here] + alone / slices)
    state.last[here] = end


@_compiled
def _take(  # noqa: PLR0917 - numba has no keywords
    given: Given, state: State, step: int, begins: float, end: float, slices: int, amount: float
) -> float:
    """Promise resources to a step from some time on; when it ends at the earliest."""
    prices = given.prices
    for use in range(prices.first_use[step], prices.first_use[step + 1]):
        resource = prices.use_resource[use]
        until = max(state.free[resource], begins) + slices * prices.use_fixed[use] + amount * prices.use_unit[use]
        state.free[resource] = until
        end = max(end, until)
    return end
