"""What the compiled lowering reads and writes: few tables of integers, each of many columns.

Numba takes its time over every array that a function is given, so a table is one array: a row a thing, a column a
fact, by the numbers below. Where a thing has several of another, its column `FIRST_…` tells where they begin, and the
next row where they end; such tables have a row more for that. Batches are one such table.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from autosync.plan.steps import Measure, WaitKind
from autosync.plan.tables import Gates, Operations

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MEASURES: tuple[Measure, ...] = get_args(Measure)
NUM_MEASURES = len(MEASURES)
ONE = NUM_MEASURES
"""Beside the measures: whatever slices there are, it is 1."""

WAITS: tuple[WaitKind, ...] = get_args(WaitKind)

COLLECT, ONCE, EACH, NORM, NORM_SHARE, NUM_LISTS = range(6)
"""The lists of steps of a template; the last are the norm of its finished gradients, or of a share of these each."""

# What a variable is. Uses are numbered in order. Rows and columns are its first two axes, 1 where there is none.
READY, USE, ITEM_BYTES, NUM_ELEMENTS, ROWS, COLUMNS, MAX_TOUCHED_ROWS, FACTOR_ROWS = range(8)

# What a template is: slices are settled each alone; parts that lie side by side are one; who has finished gradients
# (a number, 0 being all workers together), whether all workers have all of them, whether they have norms of their
# own; whether every worker makes its updates; the codec; and what its slices must be measured by (bits).
BY_SLICE, JOINS, HOLDERS, EVERYWHERE, OWN_NORM, BY_EVERY_WORKER, CODEC, NEEDS = range(8)
NO_CODEC, INT8, TOP_K, SIGN = range(4)
NEEDS_BYTES, NEEDS_MATRIX, NEEDS_ROWS = 1, 2, 4

# Lists of steps, at `template * NUM_LISTS + list`: their steps, and the waits for what they do to be done.
FIRST_STEP, FIRST_DONE = range(2)

# What a step is, as in `plan.tables`; its size is `FACTOR` times a measure, and 0 bytes are those of the message.
IS_TRANSFER, KIND, ALGORITHM, SHAPE, MEASURE, FACTOR, STEP_BYTES, STAGE, EVERY, COST, SHARDED, FIRST_WAIT = range(12)

# What is waited for: a position in `WAITS`, with step and lag.
WAIT, WAIT_STEP, WAIT_LAG = range(3)

# Strategies in their canonical form, cut into slices. Elements are counted in slices, pieces and parts.
FIRST_MESSAGE, FORWARD, NUM_LANES = range(3)
FIRST_SLICE, TEMPLATE, LANE, PRIORITY, MESSAGE_BYTES = range(5)
FIRST_PIECE, SLICE_ELEMENTS, SLICE_READY, SLICE_USE = range(4)
PART, PIECE_ELEMENTS = range(2)
VARIABLE, AXIS, BEGIN, END, PART_ELEMENTS = range(5)

# A list of steps that is stamped on slices `FROM` to `TO` of a message: its first operation is at `POSITION` in the
# plan. `NORM_AT` is the operation that updates wait for, if any; `ROUND_AT` where the round begins. A norm waits for
# the others that are listed from `NORM_AT` to `ROUND_AT` instead.
POSITION, LIST, MESSAGE, FROM, TO, NORM_AT, ROUND_AT, NUM_STAMP_COLUMNS = range(8)


class Variables(NamedTuple):
    """A model's variables: their table, the rows of an embedding that one rank touches, and the sizes of all axes.

    A scalar has one axis of size 1.
    """

    table: Integers
    touched_rows: Floats
    first_axis: Integers
    axis_size: Integers


class Templates(NamedTuple):
    """Templates, the numbers of their codecs (a block, a ratio), their lists of steps, and what is waited for."""

    table: Integers
    codec_number: Floats
    lists: Integers
    steps: Integers
    waits: Integers
    done: Integers


class Slices(NamedTuple):
    """A batch of strategies in their canonical form, cut into slices; `amounts` of slices by measure.

    Strategies, messages and slices have a row more, for where the last of what they have ends.
    """

    strategies: Integers
    messages: Integers
    slices: Integers
    pieces: Integers
    parts: Integers
    amounts: Integers


class Stamps(NamedTuple):
    """Stamps of a batch of plans in their order; `first` tells where those of each plan begin.

    So does `first_operation`. `collected` is where in the plan the steps begin that collect a slice's gradient, `near`
    lists the norms that norms wait for.
    """

    table: Integers
    first: Integers
    first_operation: Integers
    collected: Integers
    near: Integers


class Plans(NamedTuple):
    """A batch of plans as tables, one behind the other.

    Plan i has the operations `first_operation[i]` to `first_operation[i + 1]` and so its edges, its gates and theirs.
    Where an operation's edges begin is told within its plan, and each plan has an entry more, for where its last ones
    end: those of plan i are `operations.after.first` from `first_operation[i] + i` on. Targets are positions in the
    plan. Shapes and costs are those of the lowering. `by_users`: the updates that the user's optimizer makes, on
    `users_elements` in all.
    """

    first_operation: Integers
    first_edge: Integers
    first_gate: Integers
    first_gate_edge: Integers
    operations: Operations
    gates: Gates
    by_users: Flags
    users_elements: Integers
