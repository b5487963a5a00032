"""The compiled simulation of a step from the start of backward until the next forward pass may begin.

Units that can continue are in `todo`. Each does its local work up to its next transfer, or until it is collected and
may not be settled yet, or to its end. When `todo` is empty, the transfer that can begin first is scheduled.

Every function here has one caller and is inlined into it: calls with all these arrays would take most of the time. They
share one record, `progress`.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.analytical.books import Books
from autosync.simulators.analytical.tables import KernelInputs
from autosync.simulators.jit import borrows_inner, inlined
from autosync.simulators.shared.arrays import Record


@borrows_inner
def play_backward(given: KernelInputs, books: Books, number: int, begins: float, period: int) -> float:
    """Return when the next forward pass may begin, for a step whose backward pass begins at `begins`."""
    progress = books.progress[0]
    _begin(given, books, progress, number, begins)
    while True:
        while progress.num_todo > 0:
            progress.num_todo -= 1
            _go_on(given, books, progress, number, period)
        if _opens(given, books, progress):
            continue
        lane, start = _first_to_begin(given, books, progress, number)
        if lane < 0:
            break
        _transfer(given, books, progress, number, lane, start)
    if given.units.strategies[number].forward:
        return float(progress.called)
    return float(max(progress.called + progress.users_elements * given.training.pace.update, progress.settled))


@inlined
def _begin(given: KernelInputs, books: Books, progress: Record, number: int, begins: float) -> None:
    """Put all units into `todo`, the first one on top, and set all lanes to their first job."""
    strategy, units, templates = given.units.strategies[number], given.units.units, given.prices.templates
    num_units = strategy.last_unit - strategy.first_unit
    progress.num_active = progress.num_awaited = progress.is_open = 0
    progress.num_units = progress.num_todo = progress.num_left = num_units
    progress.called = begins + given.training.pace.backward
    progress.collected = progress.opened = progress.settled = progress.users_elements = 0.0
    for lane in range(strategy.num_lanes * given.prices.num_stages):
        books.lanes[lane].next = books.lanes[lane].head
        if books.lanes[lane].head >= 0:
            books.active[progress.num_active] = lane
            progress.num_active += 1
    for message in range(strategy.num_messages):
        books.messages[message].left = books.messages[message].num_units
        books.messages[message].collected = 0.0
    books.gate[:] = 0.0
    for here in range(num_units):
        entry, template = books.entries[here], templates[units[strategy.first_unit + here].template]
        entry.step = template.first_step
        entry.collected = entry.settles = 0
        entry.first = begins + entry.ready_first
        entry.last = begins + entry.ready_last
        # With overlap into the forward pass, backward returns without waiting for any unit.
        if not strategy.forward:
            progress.num_awaited += template.everywhere
        # Units are taken from the end, so the first unit is stored last.
        books.todo[here] = num_units - 1 - here


@inlined
def _go_on(given: KernelInputs, books: Books, progress: Record, number: int, period: int) -> None:
    """Take a unit from `todo` and advance it as far as possible without a transfer."""
    first_unit, forward = given.units.strategies[number].first_unit, given.units.strategies[number].forward
    here = books.todo[progress.num_todo]
    entry, unit = books.entries[here], given.units.units[first_unit + here]
    while True:
        if entry.step == entry.middle_step and not entry.settles:
            _collect(given, books, progress, number, here)
            if not entry.settles:
                break
        if entry.step == entry.last_step:
            _settle(given, books, progress, first_unit, here)
            break
        step = given.prices.steps[entry.step]
        if step.every in (1, period):
            if step.is_transfer:
                break
            amount = given.units.amount[first_unit + here, step.measure]
            if step.is_users and not forward:
                # The user's optimizer updates all remaining parameters when everything else is done.
                progress.users_elements += amount
            else:
                slices = unit.num_slices
                alone = slices * step.fixed + step.unit * amount
                end = entry.last + alone / slices
                for place in range(step.first_use, step.last_use):
                    use = given.prices.uses[place]
                    until = max(books.free[use.resource], entry.first) + slices * use.fixed + amount * use.unit
                    books.free[use.resource] = until
                    end = max(end, until)
                entry.first = min(end, entry.first + alone / slices)
                entry.last = end
        entry.step += 1


@inlined
def _collect(given: KernelInputs, books: Books, progress: Record, number: int, here: int) -> None:
    """Mark a unit as collected. If its message may settle now, let the unit and the others of the message settle."""
    strategy, unit = given.units.strategies[number], given.units.units[given.units.strategies[number].first_unit + here]
    entry, message = books.entries[here], books.messages[unit.message]
    was_collected = entry.collected
    if not was_collected:
        entry.collected = 1
        progress.num_left -= 1
        progress.collected = max(progress.collected, entry.last)
        message.left -= 1
        message.collected = max(message.collected, entry.last)
        if not strategy.forward and given.prices.templates[unit.template].everywhere:
            progress.num_awaited -= 1
            progress.called = max(progress.called, entry.last)
    if not progress.is_open or (message.left > 0 and not entry.by_slice):
        return
    since = progress.opened if entry.by_slice else max(progress.opened, message.collected)
    entry.first, entry.last = max(entry.first, since), max(entry.last, since)
    entry.settles = 1
    # The message waited only for this unit. Its other units, which stopped here, continue.
    if not was_collected and not entry.by_slice:
        fellow = message.newest
        while fellow >= 0:
            if fellow != here:
                books.todo[progress.num_todo] = fellow
                progress.num_todo += 1
            fellow = books.entries[fellow].older


@inlined
def _settle(given: KernelInputs, books: Books, progress: Record, first_unit: int, here: int) -> None:
    """Finish a unit: the next forward pass may use each variable when the variable's share of the unit is done."""
    entry, unit = books.entries[here], given.units.units[first_unit + here]
    if not given.prices.templates[unit.template].awaited:
        return
    progress.settled = max(progress.settled, entry.last)
    for place in range(unit.first_piece, unit.last_piece):
        piece = given.units.pieces[place]
        through = entry.first + piece.until * (entry.last - entry.first)
        books.gate[piece.variable] = max(books.gate[piece.variable], through)


@inlined
def _opens(given: KernelInputs, books: Books, progress: Record) -> bool:
    """Return whether backward returns now; if so, put the collected units into `todo`, in the order of use.

    A global norm is known when all gradients are collected, and nothing is updated before.
    """
    norm = given.training.pace.norm
    if progress.is_open or progress.num_awaited > 0 or (norm != 0.0 and progress.num_left > 0):
        return False
    progress.is_open = 1
    progress.opened = progress.called if norm == 0.0 else max(progress.called, progress.collected + norm)
    for place in range(progress.num_units - 1, -1, -1):
        if books.entries[books.order[place]].collected:
            books.todo[progress.num_todo] = books.order[place]
            progress.num_todo += 1
    return True


@inlined
def _first_to_begin(given: KernelInputs, books: Books, progress: Record, number: int) -> tuple[int, float]:
    """Return the lane whose next transfer can begin first, and its start; lane -1 if there is none.

    Among equals the most urgent wins.
    """
    first_unit = given.units.strategies[number].first_unit
    best, best_start, best_priority = -1, np.inf, 0
    for position in range(progress.num_active):
        lane = books.active[position]
        job = books.lanes[lane].next
        here = job // books.num_steps
        entry, unit = books.entries[here], given.units.units[first_unit + here]
        step = given.prices.templates[unit.template].first_step + job - here * books.num_steps
        # The unit has not reached this step yet, or may not be settled yet.
        if entry.step != step or (entry.step >= entry.middle_step and not entry.settles):
            continue
        start = max(books.lanes[lane].free, entry.first)
        if start < best_start or (start == best_start and unit.priority < best_priority):
            best, best_start, best_priority = lane, start, unit.priority
    return best, best_start


@inlined
def _transfer(given: KernelInputs, books: Books, progress: Record, number: int, lane: int, start: float) -> None:  # noqa: PLR0917 - numba has no keywords
    """Schedule a lane's next transfer. It ends when all resources that it uses have been free for long enough."""
    first_unit, ours = given.units.strategies[number].first_unit, books.lanes[lane]
    here = ours.next // books.num_steps
    ours.next = books.after[ours.next]
    if ours.next < 0:
        _drop(books, progress, lane)
    entry, unit = books.entries[here], given.units.units[first_unit + here]
    step, slices = given.prices.steps[entry.step], unit.num_slices
    amount = given.units.amount[first_unit + here, step.measure]
    if step.own_items:
        amount *= unit.item_bytes
    wire = step.unit * amount
    alone = slices * step.fixed + wire
    end = max(start + alone, entry.last + alone / slices)
    for place in range(step.first_use, step.last_use):
        use = given.prices.uses[place]
        until = max(books.free[use.resource], start + step.fixed) + amount * use.unit
        books.free[use.resource] = until
        end = max(end, until)
    # A member that only sends continues as soon as the rest is in its socket (`ahead`).
    ours.free = end - min(wire / slices, step.ahead)
    entry.first = start + (end - start) / slices
    entry.last = end
    entry.step += 1
    books.todo[0] = here
    progress.num_todo = 1


@inlined
def _drop(books: Books, progress: Record, lane: int) -> None:
    """Remove a lane that has no more transfers in this step."""
    num_kept = 0
    for position in range(progress.num_active):
        if books.active[position] != lane:
            books.active[num_kept] = books.active[position]
            num_kept += 1
    progress.num_active = num_kept
