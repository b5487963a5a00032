"""The inputs of the analytical kernel: prices of templates, the units of strategies, and the model's step.

A *unit* is a run of slices of one message, or the whole message if it is not sliced. It passes through the steps of its
message's template in order. Tables are few arrays of records, because compiled functions pay for each array argument. A
record that refers to several rows of another table has the first of them and the one after the last.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from autosync.plan.steps import Measure
from autosync.simulators.shared.arrays import Floats, Records

MEASURES: tuple[Measure, ...] = get_args(Measure)
ELEMENTS = MEASURES.index("elements")

LINK, PROCESSORS, THREAD, SWITCH = range(4)
"""The kinds of resource: one direction of a link, the processors if all nodes share them, the thread of a rank, and
what the ranks of a node share inside it, which counts as a link too."""

TEMPLATE = np.dtype(
    [
        ("first_step", np.int64),
        ("middle_step", np.int64),
        ("last_step", np.int64),
        ("period", np.int64),
        ("everywhere", np.int64),
        ("by_slice", np.int64),
        ("awaited", np.int64),
    ]
)
"""A template. The steps before `middle_step` collect gradients, the others settle them.

Everything is done at least once in `period` iterations. `everywhere`: the collected result is on all workers.
`by_slice`: slices settle separately. `awaited`: the next forward pass waits for the settled result, so it is not stale.
"""

STEP = np.dtype(
    [
        ("is_transfer", np.int64),
        ("is_users", np.int64),
        ("own_items", np.int64),
        ("stage", np.int64),
        ("every", np.int64),
        ("measure", np.int64),
        ("fixed", np.float64),
        ("unit", np.float64),
        ("ahead", np.float64),
        ("rounds", np.float64),
        ("sent", np.float64),
        ("first_use", np.int64),
        ("last_use", np.int64),
    ]
)
"""A step of a template.

`is_users`: an update that the user's optimizer makes unless steps overlap. `stage`: the stage of its lane. `every`: the
interval in iterations at which the step is done. `measure`: the measure of a unit that it works on, times the bytes of
an element if `own_items`. `fixed` and `unit`: the seconds for a slice and for each unit of the measure, if it runs
alone. `ahead`: how many seconds before its end the lane continues. `rounds`: its number of rounds. `sent`: the bytes
that leave ranks for each unit of the measure.
"""

USE = np.dtype([("resource", np.int64), ("fixed", np.float64), ("unit", np.float64)])
"""The time for which a step uses a resource: seconds for a slice, and for each unit of the measure.

For a transfer, the kernel counts only the latter, the time for its bytes. `totals` counts both: the processor time that
messages take whatever their size is among the features of learned simulators, and delays no step of this one.
"""

RESOURCE = np.dtype([("kind", np.int64), ("speed", np.float64)])
"""A resource. `speed` converts a link's seconds to bytes."""

STRATEGY = np.dtype(
    [
        ("first_unit", np.int64),
        ("last_unit", np.int64),
        ("forward", np.int64),
        ("num_lanes", np.int64),
        ("num_messages", np.int64),
        ("num_parts", np.int64),
    ]
)
"""A strategy. Its units are in the order in which the last of their gradients become ready."""

UNIT = np.dtype(
    [
        ("message", np.int64),
        ("template", np.int64),
        ("lane", np.int64),
        ("priority", np.int64),
        ("num_slices", np.int64),
        ("item_bytes", np.int64),
        ("first_piece", np.int64),
        ("last_piece", np.int64),
    ]
)
"""A unit. `message` is numbered within the strategy, and `item_bytes` is the size of an element."""

PIECE = np.dtype([("variable", np.int64), ("until", np.float64)])
"""A piece, in the order of gradients: the variable, and the share of the unit up to the piece's end."""

VARIABLE = np.dtype([("ready", np.float64), ("use", np.int64)])
"""A variable: when its gradient is ready, from the start of backward, and its position among the forward pass's uses.
"""

SEGMENT = np.dtype([("waits_for", np.int64), ("seconds", np.float64)])
"""The next action of the forward pass: it waits for a variable (-1: for none), then it computes."""


class ComputePace(NamedTuple):
    """The seconds of training if nothing waits.

    `backward` is the last backward pass, and `between` the earlier microsteps before the forward pass. `update` is the
    user's optimizer's time for an element. `norm` is the time of a step's norm, 0 if the task needs none.
    """

    backward: float
    between: float
    update: float
    norm: float


class Prices(NamedTuple):
    """The prices of templates on a cluster."""

    num_stages: int
    templates: Records
    steps: Records
    uses: Records
    resources: Records


class Units(NamedTuple):
    """Strategies as units; `amount` has each unit's size in each measure."""

    strategies: Records
    units: Records
    amount: Floats
    pieces: Records


class ModelStep(NamedTuple):
    """A model's step."""

    pace: ComputePace
    variables: Records
    forward: Records


class KernelInputs(NamedTuple):
    """All inputs of the kernel."""

    prices: Prices
    units: Units
    training: ModelStep
