"""The analytical kernel: it schedules each step of each unit once, for many strategies. Compiled.

The timeline simulates transfer rates at every moment. This kernel only keeps books: the time until which each lane,
each link, the processors and the ranks' threads are busy. Local work and the bytes of transfers keep processors busy;
the time that each message takes there, of any size, is not in the books.

A transfer begins when its lane is free and its input is ready. Among the next transfers of all lanes, the one that can
begin first is scheduled first. It takes as long as it would alone or, if a link is reserved for earlier transfers,
until these and it have passed. A unit of several slices is a pipeline: its next step begins when the first slice is
done.

With overlap into the next forward pass, steps are simulated in succession until they are alike; otherwise one step from
rest is enough.

Work that is not done in every step is simulated in a step by itself for each period, which says by how much it makes
that step longer. A mean step has that share of it.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.analytical.backward import play_backward
from autosync.simulators.analytical.books import Books, empty_books, enter_units, latest, queue_jobs
from autosync.simulators.analytical.tables import KernelInputs
from autosync.simulators.jit import borrows, borrows_inner
from autosync.simulators.shared.arrays import Floats

_MAX_STEPS = 3
_STEADY = 5e-3


def step_seconds(given: KernelInputs) -> Floats:
    """Return the seconds of a step for each strategy."""
    found = np.empty(len(given.units.strategies))
    _step_seconds(given, empty_books(given), found)
    return found


@borrows
def _step_seconds(given: KernelInputs, books: Books, found: Floats) -> None:
    for number in range(len(found)):
        period, usual = 1, 0.0
        # A loop rather than two calls: numba would compile the callee once for each constant argument.
        while period > 0:
            seconds = _seconds(given, books, number, period)
            if period == 1:
                usual = found[number] = seconds
            else:
                found[number] += (seconds - usual) / period
            period = _next_period(given, number, period)


@borrows_inner
def _next_period(given: KernelInputs, number: int, period: int) -> int:
    """Return the next longer period of work that is not done in every step; 0 if there is none."""
    strategy, units, templates, found = given.units.strategies[number], given.units.units, given.prices.templates, 0
    for unit in range(strategy.first_unit, strategy.last_unit):
        other = templates[units[unit].template].period
        if other > period and (found == 0 or other < found):
            found = other
    return found


@borrows_inner
def _is_stale(given: KernelInputs, number: int) -> bool:
    """Return whether a step may end before all of its units do."""
    strategy, units, templates = given.units.strategies[number], given.units.units, given.prices.templates
    num_awaited = 0
    for unit in range(strategy.first_unit, strategy.last_unit):
        num_awaited += templates[units[unit].template].awaited
    return bool(num_awaited < strategy.last_unit - strategy.first_unit)


@borrows_inner
def _busiest(books: Books) -> int:
    """Return the lane that is busy the longest."""
    busiest = 0
    for lane in range(len(books.lanes)):
        if books.lanes[lane].free > books.lanes[busiest].free:
            busiest = lane
    return busiest


@borrows_inner
def _seconds(given: KernelInputs, books: Books, number: int, period: int) -> float:
    """Return the seconds of a steady step that does what is done in every step, and in every `period`-th one."""
    for lane in books.lanes:
        lane.free = 0.0
    books.free[:] = 0.0
    books.gate[:] = 0.0
    enter_units(given, books, number)
    queue_jobs(given, books, number, period)
    is_stale = _is_stale(given, number)
    lasts = given.units.strategies[number].forward or is_stale
    before, taken, busy = 0.0, 0.0, 0.0
    for count in range(_MAX_STEPS):
        begins = _pass_forward(given, books, before)
        ended = play_backward(given, books, number, begins, period)
        newest, before = ended - before, ended
        if is_stale:
            # No step waits for stale transfers, but they cannot fall further behind in every step.
            until = max(latest(books.free), books.lanes[_busiest(books)].free)
            newest, busy = max(newest, until - busy), until
        if not lasts or (count > 1 and abs(newest - taken) <= _STEADY * taken):
            return newest
        # If steps alternate between long and short, the mean of two is closer.
        taken = newest if count < _MAX_STEPS - 1 else 0.5 * (taken + newest)
    return taken


@borrows_inner
def _pass_forward(given: KernelInputs, books: Books, now: float) -> float:
    """Run the forward pass, in which uses wait for their gates; return when backward begins."""
    gate = books.gate
    for segment in given.training.forward:
        if segment.waits_for >= 0:
            now = max(now, gate[segment.waits_for])
        now += segment.seconds
    return now + given.training.pace.between
