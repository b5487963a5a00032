"""The books of the analytical kernel: its arrays about one strategy's units, messages and lanes. Compiled.

They are allocated once for a batch of strategies, large enough for the largest, and filled again for each strategy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.simulators.analytical.tables import KernelInputs
from autosync.simulators.jit import borrows_inner
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

`ready_first` and `ready_last` are the times, from the start of backward, when the gradients of its first and last
slices are ready; `first` and `last` are the times when these slices have finished their steps so far. `step` is the
unit's next step; `collected` and `settles` say whether it was collected and may settle. `older` is the previous unit of
its message.
"""
_MESSAGE = np.dtype(
    [("newest", np.int64), ("use", np.int64), ("num_units", np.int64), ("left", np.int64), ("collected", np.float64)]
)
"""A message: its last unit, its first use, its number of units, how many are not collected yet, and when all are."""
_LANE = np.dtype([("free", np.float64), ("head", np.int64), ("tail", np.int64), ("next", np.int64)])
"""A lane: when it is free, and its first, last and next job. A job is `unit * num_steps + step`."""

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
"""The progress of a step.

The counts: its units, the units in `todo`, the lanes with jobs left (`num_active`), the units not collected yet
(`num_left`), and the units that backward waits for (`num_awaited`). `is_open` says whether backward has returned. The
times: when the optimizer's step was called, when the last unit was collected, when settling began, and when the last
unit was settled. `users_elements` counts the elements that the user's optimizer updates itself.
"""


class Books(NamedTuple):
    """The books of one strategy; units and messages are numbered within it.

    Other fields: `order` has the units by use, `after` the job after each job in its lane, `free` the time when each
    resource is free, and `gate` the time when the next forward pass may use each variable. `active` has the lanes with
    jobs left. `bucket` and `todo` are scratch space.
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


def empty_books(given: KernelInputs) -> Books:
    """Return books that are large enough for the largest of the strategies."""
    strategies, templates = given.units.strategies, given.prices.templates
    num_units = int((strategies["last_unit"] - strategies["first_unit"]).max(initial=1))
    num_steps = int((templates["last_step"] - templates["first_step"]).max(initial=1))
    num_lanes = int(strategies["num_lanes"].max(initial=1)) * given.prices.num_stages
    num_variables = len(given.training.variables)
    return Books(
        num_steps=num_steps,
        entries=np.empty(num_units, _ENTRY),
        messages=np.empty(num_units, _MESSAGE),
        lanes=np.empty(num_lanes, _LANE),
        order=np.empty(num_units, np.int64),
        after=np.empty(num_units * num_steps, np.int64),
        free=np.empty(len(given.prices.resources)),
        gate=np.empty(num_variables),
        bucket=np.empty(num_variables + 2, np.int64),
        todo=np.empty(2 * num_units, np.int64),
        active=np.empty(num_lanes, np.int64),
        progress=np.zeros(1, _PROGRESS),
    )


@borrows_inner
def latest(times: Floats) -> float:
    """Return the largest of some times, which are 0 or more."""
    found = 0.0
    for time in times:
        found = max(found, time)
    return found


@borrows_inner
def enter_units(given: KernelInputs, books: Books, number: int) -> None:
    """Enter when units are ready, and sort them by use: the message's use, or their own if slices settle separately."""
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


@borrows_inner
def queue_jobs(given: KernelInputs, books: Books, number: int, period: int) -> None:
    """Queue the jobs of each lane: those that collect, in the order of readiness, then those that settle, by use."""
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
                if step.is_transfer and step.every in (1, period):
                    lane = lanes[unit.lane + step.stage * strategy.num_lanes]
                    job = here * books.num_steps + number_of_step - template.first_step
                    if lane.head < 0:
                        lane.head = job
                    else:
                        after[lane.tail] = job
                    lane.tail = job
                    after[job] = -1
