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

import numpy as np

from autosync.simulators.analytical.tables import Floats, Given, Integers, Records
from autosync.simulators.compiled import called, inner

_MAX_STEPS = 3
_STEADY = 5e-3
_ROUNDING = 1e-9

_ENTRY = np.dtype(
    [
        ("ready_first", np.float64),
        ("ready_last", np.float64),
        ("first", np.float64),
        ("last", np.float64),
        ("use", np.int64),
        ("step", np.int64),
        ("middle_step", np.int64),
        ("last_step", np.int64),
        ("by_slice", np.int64),
        ("collected", np.int64),
        ("settles", np.int64),
        ("older", np.int64),
    ]
)
"""A unit in the books.

When the gradients of its first and last slice are ready, from the beginning of backward on, and when these slices are
through what was done so far; its `use`; the step that it comes to next; whether it was `collected` and may go on to be
settled (`settles`); the unit before it in its message.
"""
_MESSAGE = np.dtype(
    [("newest", np.int64), ("use", np.int64), ("num_units", np.int64), ("left", np.int64), ("collected", np.float64)]
)
"""Its last unit and the first use of all; how many there are, how many are not collected yet, since when all are."""
_LANE = np.dtype([("free", np.float64), ("head", np.int64), ("tail", np.int64), ("next", np.int64)])
"""Until when it is taken; its first, its last and its next job. A job is `unit * num_steps + step`."""


class State(NamedTuple):
    """The books of one strategy, its units and messages counted within it.

    Beside these: the `order` of units by use, the job `after` each in its lane, until when resources are taken
    (`free`), when the next forward pass may use each variable (`gate`), lanes that have something left (`active`), and
    room to sort and to remember.
    """

    num_steps: int
    entries: Records
    messages: Records
    lanes: Records
    order: Integers
    after: Integers
    free: Floats
    gate: Floats
    bucket: Integers
    todo: Integers
    active: Integers


@called
def step_seconds(given: Given) -> Floats:
    """The seconds of a step by each strategy."""
    found = np.empty(len(given.units.strategies))
    state = _state(given)
    for number in range(len(found)):
        period = _period(given, number)
        # In a loop: for each value that stands in a call all that is called would be compiled once more.
        for rare in (True, False):
            if rare:
                found[number] = _seconds(given, state, number, rare)
            elif period > 1:
                usual = _seconds(given, state, number, rare)
                found[number] = usual + (found[number] - usual) / period
    return found


@inner
def _state(given: Given) -> State:
    """Books that have room for the largest of the strategies."""
    num_units, num_lanes, num_steps, num_variables = 1, 1, 1, len(given.training.variables)
    for strategy in given.units.strategies:
        num_units = max(num_units, strategy.last_unit - strategy.first_unit)
        num_lanes = max(num_lanes, strategy.num_lanes)
    for template in given.prices.templates:
        num_steps = max(num_steps, template.last_step - template.first_step)
    return State(
        num_steps=num_steps,
        entries=np.empty(num_units, _ENTRY),
        messages=np.empty(num_units, _MESSAGE),
        lanes=np.empty(num_lanes * given.prices.num_stages, _LANE),
        order=np.empty(num_units, np.int64),
        after=np.empty(num_units * num_steps, np.int64),
        free=np.empty(len(given.prices.resources)),
        gate=np.empty(num_variables),
        bucket=np.empty(num_variables + 2, np.int64),
        todo=np.empty(2 * num_units, np.int64),
        active=np.empty(num_lanes * given.prices.num_stages, np.int64),
    )


@inner
def _period(given: Given, number: int) -> int:
    """In how many steps everything that is done now and then is done once."""
    strategy, units, templates, period = given.units.strategies[number], given.units.units, given.prices.templates, 1
    for unit in range(strategy.first_unit, strategy.last_unit):
        period = max(period, templates[units[unit].template].period)
    return period


@inner
def _is_stale(given: Given, number: int) -> bool:
    """Whether a step may end before all that it began."""
    strategy, units, templates = given.units.strategies[number], given.units.units, given.prices.templates
    num_awaited = 0
    for unit in range(strategy.first_unit, strategy.last_unit):
        num_awaited += templates[units[unit].template].awaited
    return bool(num_awaited < strategy.last_unit - strategy.first_unit)


@inner
def _busiest(state: State) -> int:
    """The lane that is taken the longest."""
    busiest = 0
    for lane in range(len(state.lanes)):
        if state.lanes[lane].free > state.lanes[busiest].free:
            busiest = lane
    return busiest


@inner
def _seconds(given: Given, state: State, number: int, rare: bool) -> float:  # noqa: FBT001 - numba has no keywords
    """A step among others like it; `rare`: one in which everything is done that is done now and then."""
    for lane in state.lanes:
        lane.free = 0.0
    state.free[:] = 0.0
    state.gate[:] = 0.0
    _place(given, state, number)
    _queue(given, state, number, rare)
    is_stale = _is_stale(given, number)
    lasts = given.units.strategies[number].forward or is_stale
    before, taken, busy = 0.0, 0.0, 0.0
    for count in range(_MAX_STEPS):
        begins = _pass_forward(given, state, before)
        ended = _play(given, state, number, begins, rare)
        latest, before = ended - before, ended
        if is_stale:
            # Nobody waits for what is not of this step, but it cannot fall behind for ever.
            until = max(state.free.max(), state.lanes[_busiest(state)].free)
            latest, busy = max(latest, until - busy), until
        if not lasts or (count > 1 and abs(latest - taken) <= _STEADY * taken):
            return latest
        # Where steps go up and down, two of them tell more than one.
        taken = latest if count < _MAX_STEPS - 1 else 0.5 * (taken + latest)
    return taken


# What is the same in every step.


@inner
def _place(given: Given, state: State, number: int) -> None:
    """When units are ready, and their order by use: their message's, or their own where slices are settled alone."""
    strategy, units, pieces = given.units.strategies[number], given.units.units, given.units.pieces
    variables, entries, messages, bucket = given.training.variables, state.entries, state.messages, state.bucket
    num_units, num_variables = strategy.last_unit - strategy.first_unit, len(variables)
    for place in range(strategy.num_messages):
        messages[place].newest, messages[place].use, messages[place].num_units = -1, num_variables, 0
    for here in range(num_units):
        unit, entry = units[strategy.first_unit + here], entries[here]
        message, template = messages[unit.message], given.prices.templates[unit.template]
        entry.middle_step, entry.last_step = template.middle_step, template.last_step
        entry.by_slice = template.by_slice
        entry.ready_last = entry.ready_first = variables[pieces[unit.last_piece - 1].variable].ready
        entry.use = num_variables
        first_slice = 1.0 / unit.num_slices - _ROUNDING
        for place in range(unit.last_piece - 1, unit.first_piece - 1, -1):
            variable = variables[pieces[place].variable]
            if pieces[place].until >= first_slice:
                entry.ready_first = variable.ready
            entry.use = min(entry.use, variable.use)
        message.use = min(message.use, entry.use)
        message.num_units += 1
        entry.older, message.newest = message.newest, here
    bucket[:] = 0
    for here in range(num_units):
        if not entries[here].by_slice:
            entries[here].use = messages[units[strategy.first_unit + here].message].use
        bucket[entries[here].use + 1] += 1
    for use in range(num_variables + 1):
        bucket[use + 1] += bucket[use]
    for here in range(num_units):
        state.order[bucket[entries[here].use]] = here
        bucket[entries[here].use] += 1


@inner
def _queue(given: Given, state: State, number: int, rare: bool) -> None:  # noqa: FBT001 - numba has no keywords
    """The jobs of each lane: what collects in the order of readiness, then what settles in the order of use."""
    strategy, units, steps = given.units.strategies[number], given.units.units, given.prices.steps
    lanes, after = state.lanes, state.after
    for lane in lanes:
        lane.head = -1
    for settles in (False, True):
        for place in range(strategy.last_unit - strategy.first_unit):
            here = state.order[place] if settles else place
            unit = units[strategy.first_unit + here]
            template = given.prices.templates[unit.template]
            first = template.middle_step if settles else template.first_step
            last = template.last_step if settles else template.middle_step
            for number_of_step in range(first, last):
                step = steps[number_of_step]
                if step.is_transfer and (rare or step.every == 1):
                    lane = lanes[unit.lane + step.stage * strategy.num_lanes]
                    job = here * state.num_steps + number_of_step - template.first_step
                    if lane.head < 0:
                        lane.head = job
                    else:
                        after[lane.tail] = job
                    lane.tail = job
                    after[job] = -1


# A step.


@inner
def _pass_forward(given: Given, state: State, now: float) -> float:
    """Uses wait for their gates; when backward begins."""
    gate = state.gate
    for segment in given.training.forward:
        if segment.waits_for >= 0:
            now = max(now, gate[segment.waits_for])
        now += segment.seconds
    return now + given.training.pace.between


@inner
def _begin(given: Given, state: State, number: int, begins: float) -> int:
    """Backward begins; how many units it will wait for."""
    strategy, units, templates = given.units.strategies[number], given.units.units, given.prices.templates
    num_awaited = 0
    for lane in state.lanes:
        lane.next = lane.head
    for message in range(strategy.num_messages):
        state.messages[message].left = state.messages[message].num_units
        state.messages[message].collected = 0.0
    state.gate[:] = 0.0
    for here in range(strategy.last_unit - strategy.first_unit):
        entry, template = state.entries[here], templates[units[strategy.first_unit + here].template]
        entry.step = template.first_step
        entry.collected = entry.settles = 0
        entry.first = begins + entry.ready_first
        entry.last = begins + entry.ready_last
        num_awaited += template.everywhere
    return num_awaited


@inner
def _play(  # noqa: C901, PLR0912, PLR0915 - one loop: calls with arrays would take most of the time
    given: Given,
    state: State,
    number: int,
    begins: float,
    rare: bool,  # noqa: FBT001 - numba has no keywords
) -> float:
    """Backward and all that follows it, until the next forward pass may begin.

    Units that may go on are `todo`: they do local work up to their next transfer, or until they are collected and may
    not be settled yet, or until they are through. When none is left, that transfer is scheduled which can begin first.
    """
    strategy, units, amounts, pieces = given.units
    strategy_of = strategy[number]
    templates, steps, uses = given.prices.templates, given.prices.steps, given.prices.uses
    entries, messages, lanes, order = state.entries, state.messages, state.lanes, state.order
    free, gate, after, todo, active = state.free, state.gate, state.after, state.todo, state.active
    first_unit, forward, norm = strategy_of.first_unit, strategy_of.forward == 1, given.training.pace.norm
    num_units, num_active = strategy_of.last_unit - first_unit, 0
    for number_of_lane in range(strategy_of.num_lanes * given.prices.num_stages):
        if lanes[number_of_lane].head >= 0:
            active[num_active] = number_of_lane
            num_active += 1
    num_awaited, num_left = _begin(given, state, number, begins), num_units
    if forward:
        num_awaited = 0
    called, collected, opened, settled, users = begins + given.training.pace.backward, 0.0, 0.0, 0.0, 0.0
    is_open = False
    num_todo = num_units
    for here in range(num_units):
        todo[here] = num_units - 1 - here
    while True:
        while num_todo > 0:
            num_todo -= 1
            here = todo[num_todo]
            entry, unit = entries[here], units[first_unit + here]
            while True:
                if entry.step == entry.middle_step and not entry.settles:
                    message = messages[unit.message]
                    was_collected = entry.collected
                    if not was_collected:
                        entry.collected = 1
                        num_left -= 1
                        collected = max(collected, entry.last)
                        message.left -= 1
                        message.collected = max(message.collected, entry.last)
                        if not forward and templates[unit.template].everywhere:
                            num_awaited -= 1
                            called = max(called, entry.last)
                    if not is_open or (message.left > 0 and not entry.by_slice):
                        break
                    since = opened if entry.by_slice else max(opened, message.collected)
                    entry.first, entry.last = max(entry.first, since), max(entry.last, since)
                    entry.settles = 1
                    if not was_collected and not entry.by_slice:
                        fellow = message.newest
                        while fellow >= 0:
                            if fellow != here:
                                todo[num_todo] = fellow
                                num_todo += 1
                            fellow = entries[fellow].older
                if entry.step == entry.last_step:
                    if templates[unit.template].awaited:
                        settled = max(settled, entry.last)
                        for place in range(unit.first_piece, unit.last_piece):
                            piece = pieces[place]
                            through = entry.first + piece.until * (entry.last - entry.first)
                            gate[piece.variable] = max(gate[piece.variable], through)
                    break
                step = steps[entry.step]
                if rare or step.every == 1:
                    if step.is_transfer:
                        break
                    amount = amounts[first_unit + here, step.measure]
                    if step.is_users and not forward:
                        users += amount
                    else:
                        slices = unit.num_slices
                        alone = slices * step.fixed + step.unit * amount
                        end = entry.last + alone / slices
                        for place in range(step.first_use, step.last_use):
                            use = uses[place]
                            until = max(free[use.resource], entry.first) + slices * use.fixed + amount * use.unit
                            free[use.resource] = until
                            end = max(end, until)
                        entry.first = min(end, entry.first + alone / slices)
                        entry.last = end
                entry.step += 1
        if not is_open and num_awaited == 0 and (norm == 0.0 or num_left == 0):
            is_open = True
            opened = called if norm == 0.0 else max(called, collected + norm)
            for place in range(num_units - 1, -1, -1):
                if entries[order[place]].collected:
                    todo[num_todo] = order[place]
                    num_todo += 1
            continue
        best, best_start, best_priority = -1, np.inf, 0
        for position in range(num_active):
            number_of_lane = active[position]
            job = lanes[number_of_lane].next
            here = job // state.num_steps
            entry, unit = entries[here], units[first_unit + here]
            step_of_job = templates[unit.template].first_step + job - here * state.num_steps
            if entry.step != step_of_job or (entry.step >= entry.middle_step and not entry.settles):
                continue
            start = max(lanes[number_of_lane].free, entry.first)
            if start < best_start or (start == best_start and unit.priority < best_priority):
                best, best_start, best_priority = number_of_lane, start, unit.priority
        if best < 0:
            break
        lane = lanes[best]
        here = lane.next // state.num_steps
        lane.next = after[lane.next]
        if lane.next < 0:
            num_kept = 0
            for position in range(num_active):
                if active[position] != best:
                    active[num_kept] = active[position]
                    num_kept += 1
            num_active = num_kept
        entry, unit = entries[here], units[first_unit + here]
        step, slices = steps[entry.step], unit.num_slices
        amount = amounts[first_unit + here, step.measure]
        if step.own_items:
            amount *= unit.item_bytes
        wire = step.unit * amount
        alone = slices * step.fixed + wire
        end = max(best_start + alone, entry.last + alone / slices)
        for place in range(step.first_use, step.last_use):
            use = uses[place]
            until = max(free[use.resource], best_start + step.fixed) + amount * use.unit
            free[use.resource] = until
            end = max(end, until)
        lane.free = end - min(wire / slices, step.ahead)
        entry.first = best_start + (end - best_start) / slices
        entry.last = end
        entry.step += 1
        todo[0] = here
        num_todo = 1
    if forward:
        return called
    return max(called + users * given.training.pace.update, settled)
