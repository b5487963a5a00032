"""What the analytical kernel is given: prices of templates, the units of strategies, and training.

A *unit* is a run of slices of one message: where a message is not sliced, all of it. It goes through the steps of its
message's template one after the other. Tables are arrays of records, few of them: compiled functions pay for each array
that they hand to one another. A record that has several of another table names the first and the one after the last.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from autosync.plan.steps import Measure
from autosync.simulators.shared.arrays import Floats, Records

MEASURES: tuple[Measure, ...] = get_args(Measure)
ELEMENTS = MEASURES.index("elements")

LINK, PROCESSORS, THREAD = range(3)
"""What can be taken: a direction of a link, the processors where all nodes share them, the thread of a rank."""

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
"""Steps before the middle collect gradients, the others settle them.

In `period` iterations all of it is done once; whether what is collected is `everywhere`, whether slices are settled
`by_slice`, and whether the next forward pass waits for that (`awaited`: not for what is stale).
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

`is_users`: an update that the user's optimizer makes unless steps overlap · `stage` of its lane · `every`: in which
iterations · `measure` of a unit that it works on, of as many bytes as the unit's elements have (`own_items`) or as it
is · seconds for a slice (`fixed`) and for each of the measure (`unit`) with everything to itself · how many seconds
before its end its lane goes on (`ahead`) · `rounds`, and bytes that leave ranks for each of the measure (`sent`).
"""

USE = np.dtype([("resource", np.int64), ("fixed", np.float64), ("unit", np.float64)])
"""What a step takes of a resource, for a slice and for each of the measure."""

RESOURCE = np.dtype([("kind", np.int64), ("speed", np.float64)])
"""`speed` makes bytes of a link's seconds."""

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
"""Its units are in the order in which the last of their gradients become ready."""

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
"""`message` is counted within the strategy, `item_bytes` are those of an element."""

PIECE = np.dtype([("variable", np.int64), ("until", np.float64)])
"""In the order of their gradients: the variable, and the share of the unit up to the piece's end."""

VARIABLE = np.dtype([("ready", np.float64), ("use", np.int64)])
"""When its gradient is ready, from the beginning of backward on, and its place among the uses of the forward pass."""

SEGMENT = np.dtype([("waits_for", np.int64), ("seconds", np.float64)])
"""What the forward pass does next: it waits for a variable (-1: for none), then it computes."""


class ComputePace(NamedTuple):
    """How long training takes where nothing waits: backward, earlier microsteps `between` it and the forward pass, what
    the user's optimizer takes for an element, and a step's norm, 0 if the task needs none.
    """

    backward: float
    between: float
    update: float
    norm: float


class Prices(NamedTuple):
    """What templates cost on a cluster."""

    num_stages: int
    templates: Records
    steps: Records
    uses: Records
    resources: Records


class Units(NamedTuple):
    """Strategies as units; `amount` is what each unit is in each measure."""

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
    """All that the kernel is given."""

    prices: Prices
    units: Units
    training: ModelStep
