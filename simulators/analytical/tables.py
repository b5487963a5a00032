"""What the analytical kernel is given: prices of templates, the units of strategies, and training, as flat arrays.

A *unit* is a run of slices of one message: where a message is not sliced, all of it. It goes through the steps of its
message's template one after the other. Tables of several things for each row are told by arrays `first`: row i has
entries `first[i]` to `first[i + 1]`.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from autosync.plan.steps import Measure

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MEASURES: tuple[Measure, ...] = get_args(Measure)
ELEMENTS = MEASURES.index("elements")

LINK, PROCESSORS, THREAD = range(3)
"""What can be taken: a direction of a link, the processors where all nodes share them, the thread of a rank."""


class Prices(NamedTuple):
    """What the steps of templates cost on a cluster.

    - templates: their steps; how many of these collect gradients; in how many iterations all of it is done once
      (`period`); whether what is collected is `everywhere`, whether it is settled `by_slice`, and whether the next
      forward pass waits for it (`awaited`: not for what is stale);
    - steps: `is_transfer`; the stage of its lane; in which iterations (`every`); whether it is an update that the
      user's optimizer makes unless steps overlap (`is_users`); the measure of a unit that it works on, in `own_items`
      of as many bytes as the unit's elements have or else as it is; seconds for a slice (`fixed`) and for each of the
      measure (`unit`) with everything to itself; how many seconds before its end its lane goes on (`ahead`); and
      `rounds`, and bytes that leave nodes for each of the measure (`sent`);
    - uses: what a step takes of a resource, for a slice and for each of the measure;
    - resources: what `kind` they are, and the `speed` by which the seconds of links become bytes.
    """

    num_stages: int
    first_step: Integers
    num_collecting: Integers
    period: Integers
    everywhere: Flags
    by_slice: Flags
    awaited: Flags
    is_transfer: Flags
    stage: Integers
    every: Integers
    is_users: Flags
    measure: Integers
    own_items: Flags
    fixed: Floats
    unit: Floats
    ahead: Floats
    rounds: Floats
    sent: Floats
    first_use: Integers
    use_resource: Integers
    use_fixed: Floats
    use_unit: Floats
    kind: Integers
    speed: Floats


class Units(NamedTuple):
    """Strategies as units, in the order in which the last gradients of units become ready.

    - strategies: their units; `forward` overlap; how many lanes, messages and parts they have;
    - units: their message (counted within the strategy), its template, lane and priority; their slices; how much they
      are in each measure; and the bytes of an element;
    - pieces of a unit, in the order of their gradients: the variable, and the share of the unit up to the piece's end.
    """

    first_unit: Integers
    forward: Flags
    num_lanes: Integers
    num_messages: Integers
    num_parts: Integers
    message: Integers
    template: Integers
    lane: Integers
    priority: Integers
    num_slices: Integers
    amount: Floats
    item_bytes: Floats
    first_piece: Integers
    variable: Integers
    until: Floats


class Training(NamedTuple):
    """A model's step where nothing waits.

    `ready` is when each variable's gradient is, from the beginning of backward on, and `use` its place among the uses
    of the forward pass. The forward pass is a row of uses (`waits_for`, a variable or -1) and of what is computed
    after each (`seconds`); `between` is what earlier microsteps take. `update` is what the user's optimizer takes for
    an element, `norm` what it takes to find a step's norm, 0 where nobody asks for it.
    """

    ready: Floats
    use: Integers
    waits_for: Integers
    seconds: Floats
    backward: float
    between: float
    update: float
    norm: float


class Given(NamedTuple):
    """All that the kernel is given."""

    prices: Prices
    units: Units
    training: Training
