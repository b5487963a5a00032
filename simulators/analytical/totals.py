"""The totals of strategies, regardless of overlap: columns that explain why a step takes long. Compiled.

Learned simulators read them, so a column keeps its name and its meaning.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.analytical.books import latest
from autosync.simulators.analytical.kernel import step_seconds
from autosync.simulators.analytical.tables import ELEMENTS, LINK, PROCESSORS, SWITCH, THREAD, KernelInputs
from autosync.simulators.jit import borrows, borrows_inner
from autosync.simulators.shared.arrays import Floats

TOTALS = (
    "seconds",
    "compute_seconds",
    "forward_overlap",
    "link_seconds",
    "link_bytes",
    "mean_link_seconds",
    "processor_seconds",
    "thread_seconds",
    "lane_seconds",
    "wire_seconds",
    "fixed_seconds",
    "tail_seconds",
    "tail_elements",
    "sent_bytes",
    "num_rounds",
    "num_transfers",
    "num_slices",
    "num_messages",
    "num_parts",
    "num_lanes",
    "users_elements",
)
"""The columns, for one step.

`seconds` is the prediction, and `compute_seconds` forward and backward alone. Of each kind of resource, the busiest
counts: `link_seconds` and `link_bytes` of a link, `processor_seconds`, and `thread_seconds` of local work.
`mean_link_seconds` is the mean of all links with traffic; if it is far below `link_seconds`, one server or one slow
node carries more than the others. Transfers count as if each ran alone: `lane_seconds` for the busiest lane,
`wire_seconds` and `fixed_seconds` for all of them, with and without bytes. `tail_seconds` and `tail_elements` are of
units that cannot begin before the last gradient is ready. The others are counts: bytes that leave ranks, rounds,
transfers, slices, messages, parts, lanes, and the elements that the user's optimizer updates itself.
"""

_LINK_SECONDS, _WIRE, _TAIL = TOTALS.index("link_seconds"), TOTALS.index("wire_seconds"), TOTALS.index("tail_seconds")
_SENT, _USERS = TOTALS.index("sent_bytes"), TOTALS.index("users_elements")


def totals_of(given: KernelInputs) -> Floats:
    """Return a row for each strategy, with the columns of `TOTALS`."""
    strategies, prices = given.units.strategies, given.prices
    found = np.zeros((len(strategies), len(TOTALS)))
    taken = np.empty(len(prices.resources))
    lanes = np.empty(int(strategies["num_lanes"].max(initial=1)) * prices.num_stages)
    _add_up(given, found, taken, lanes)
    found[:, 0] = step_seconds(given)
    return found


@borrows
def _add_up(given: KernelInputs, found: Floats, taken: Floats, lanes: Floats) -> None:
    """Fill in all columns but the first. `taken` and `lanes` are scratch space, for resources and for lanes."""
    strategies, pace = given.units.strategies, given.training.pace
    compute = pace.backward + pace.between
    for segment in given.training.forward:
        compute += segment.seconds
    for number in range(len(strategies)):
        strategy, row = strategies[number], found[number]
        taken[:] = 0.0
        lanes[:] = 0.0
        row[1] = compute
        row[2] = strategy.forward
        for unit in range(strategy.first_unit, strategy.last_unit):
            _add_unit(given, unit, row, taken, lanes)
        _add_resources(given, taken, row)
        row[_WIRE - 1] = latest(lanes)
        row[_SENT + 3] = 0.0
        for unit in range(strategy.first_unit, strategy.last_unit):
            row[_SENT + 3] += given.units.units[unit].num_slices
        row[_SENT + 4] = strategy.num_messages
        row[_SENT + 5] = strategy.num_parts
        row[_SENT + 6] = strategy.num_lanes


@borrows_inner
def _add_unit(given: KernelInputs, number: int, row: Floats, taken: Floats, lanes: Floats) -> None:
    # Column 2 says whether steps overlap; if so, the user's optimizer updates nothing itself.
    unit, variables = given.units.units[number], given.training.variables
    template, steps, uses = given.prices.templates[unit.template], given.prices.steps, given.prices.uses
    last_piece = given.units.pieces[unit.last_piece - 1]
    is_tail = variables[last_piece.variable].ready >= given.training.pace.backward * (1.0 - 1e-9)
    if is_tail:
        row[_TAIL + 1] += given.units.amount[number, ELEMENTS]
    for place in range(template.first_step, template.last_step):
        step = steps[place]
        amount = given.units.amount[number, step.measure] / step.every
        slices = unit.num_slices / step.every
        if step.own_items:
            amount *= unit.item_bytes
        if step.is_users and row[2] == 0.0:
            row[_USERS] += amount
        for at in range(step.first_use, step.last_use):
            taken[uses[at].resource] += slices * uses[at].fixed + amount * uses[at].unit
        alone = slices * step.fixed + amount * step.unit
        if is_tail and place < template.middle_step:
            row[_TAIL] += alone
        if step.is_transfer:
            lanes[unit.lane * given.prices.num_stages + step.stage] += alone
            row[_WIRE] += amount * step.unit
            row[_WIRE + 1] += slices * step.fixed
            row[_SENT] += amount * step.sent
            row[_SENT + 1] += slices * step.rounds
            row[_SENT + 2] += slices


@borrows_inner
def _add_resources(given: KernelInputs, taken: Floats, row: Floats) -> None:
    """Enter the busiest resource of each kind."""
    total, count = 0.0, 0
    for resource in range(len(taken)):
        kind = given.prices.resources[resource].kind
        if kind in (LINK, SWITCH) and taken[resource] > 0.0:
            total, count = total + taken[resource], count + 1
            if taken[resource] > row[_LINK_SECONDS]:
                row[_LINK_SECONDS] = taken[resource]
                row[_LINK_SECONDS + 1] = taken[resource] * given.prices.resources[resource].speed
        elif kind == PROCESSORS:
            row[_LINK_SECONDS + 3] = taken[resource]
        elif kind == THREAD:
            row[_LINK_SECONDS + 4] = max(row[_LINK_SECONDS + 4], taken[resource])
    row[_LINK_SECONDS + 2] = total / max(1, count)
