"""The books of the analytical kernel: what it knows of one strategy's units, messages and lanes. Compiled.

They are made once for a batch of strategies, with room for the largest, and filled anew for each strategy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.analytical.tables import KernelInputs
from autosync.simulators.jit import inner
from autosync.simulators.shared.arrays import Floats, Integers, Records

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

_PROGRESS = np.dtype(
    [
        ("num_units", np.int64),
        ("num_todo", np.int64),
        ("num_active", np.int64),
        ("num_left", np.int64),
        ("num_awaited", np.int64),
        ("is_open", np.int64),
        ("called", np.float64),
        ("collected", np.float64),
        ("opened", np.float64),
        ("settled", np.float64),
        ("users_elements", np.float64),
    ]
)
"""How far a step is.

How many units it has, how many of them are to go on, and how many are not collected yet; the lanes with something left;
how many units backward waits for, and whether it has returned (`is_open`). When the step was called, the last unit was
collected, settling began, the last unit was settled; and the elements that the user's optimizer updates itself.
"""


class Books(NamedTuple):
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
    progress: Records


@inner
def empty_books(given: KernelInputs) -> Books:
    """Books that have room for the largest of the strategies."""
    num_units, num_lanes, num_steps, num_variables = 1, 1, 1, len(given.training.variables)
    for strategy in given.units.strategies:
        num_units = max(num_units, strategy.last_unit - strategy.first_unit)
        num_lanes = max(num_lanes, strategy.num_lanes)
    for template in given.prices.templates:
        num_steps = max(num_steps, template.last_step - template.first_step)
    return Books(
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
        progress=np.zeros(1, _PROGRESS),
    )


@inner
def enter_units(given: KernelInputs, books: Books, number: int) -> None:
    """When units are ready, and their order by use: their message's, or their own where slices are settled alone."""
    strategy, units, pieces = given.units.strategies[number], given.units.units, given.units.pieces
    variables, entries, messages, bucket = given.training.variables, books.entries, books.messages, books.bucket
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
        books.order[bucket[entries[here].use]] = here
        bucket[entries[here].use] += 1


@inner
def queue_jobs(given: KernelInputs, books: Books, number: int, rare: bool) -> None:  # noqa: FBT001 - numba has no keywords
    """The jobs of each lane: what collects in the order of readiness, then what settles in the order of use."""
    strategy, units, steps = given.units.strategies[number], given.units.units, given.prices.steps
    lanes, after = books.lanes, books.after
    for lane in lanes:
        lane.head = -1
    for settles in (False, True):
        for place in range(strategy.last_unit - strategy.first_unit):
            here = books.order[place] if settles else place
            unit = units[strategy.first_unit + here]
            template = given.prices.templates[unit.template]
            first = template.middle_step if settles else template.first_step
            last = template.last_step if settles else template.middle_step
            for number_of_step in range(first, last):
                step = steps[number_of_step]
                if step.is_transfer and (rare or step.every == 1):
                    lane = lanes[unit.lane + step.stage * strategy.num_lanes]
                    job = here * books.num_steps + number_of_step - template.first_step
                    if lane.head < 0:
                        lane.head = job
                    else:
                        after[lane.tail] = job
                    lane.tail = job
                    after[job] = -1
