"""The tables of integers that the compiled lowering reads and writes, and the numbers of their columns.

Numba spends time on every array that a function receives, so each table is one array, with a row for each entry and a
column for each fact. The columns are numbered below. If an entry has several entries of another table, its column
`FIRST_…` says where these begin, and the next row says where they end; such a table has one extra row at its end. A
batch has one table of each sort.
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
"""The column of amounts after the measures; its value is always 1."""

WAITS: tuple[WaitKind, ...] = get_args(WaitKind)

COLLECT, ONCE, EACH, NORM, NORM_SHARE, NUM_LISTS = range(6)
"""A template's lists of steps. `NORM` is the norm of its finished gradients, `NORM_SHARE` that of a rank's share."""

# The columns of variables. Uses are numbered in order. Rows and columns are the sizes of the first two axes, or 1.
READY, USE, ITEM_BYTES, NUM_ELEMENTS, ROWS, COLUMNS, MAX_TOUCHED_ROWS, FACTOR_ROWS = range(8)

# The columns of templates: whether each slice is settled by itself; whether parts that lie side by side are joined;
# which ranks hold finished gradients (a number; 0 stands for all workers); whether every worker holds all of them;
# whether each worker has a norm of its own; whether every worker makes the update; the codec; the needed measures, as
# bits.
BY_SLICE, JOINS, HOLDERS, EVERYWHERE, OWN_NORM, BY_EVERY_WORKER, CODEC, NEEDS = range(8)
NO_CODEC, INT8, TOP_K, SIGN = range(4)
NEEDS_BYTES, NEEDS_MATRIX, NEEDS_ROWS = 1, 2, 4

# The columns of lists of steps (row `template * NUM_LISTS + list`): their steps, and the waits until they are done.
FIRST_STEP, FIRST_DONE = range(2)

# The columns of steps, as in `plan.tables`. The size is `FACTOR` times a measure; 0 bytes mean those of the message.
IS_TRANSFER, KIND, ALGORITHM, SHAPE, MEASURE, FACTOR, STEP_BYTES, STAGE, EVERY, COST, SHARDED, FIRST_WAIT = range(12)

# The columns of waits: a position in `WAITS`, the step and the lag.
WAIT, WAIT_STEP, WAIT_LAG = range(3)

# The columns of strategies, messages, slices, pieces and parts, in canonical form. `…_ELEMENTS` count elements.
FIRST_MESSAGE, FORWARD, NUM_LANES = range(3)
FIRST_SLICE, TEMPLATE, LANE, PRIORITY, MESSAGE_BYTES = range(5)
FIRST_PIECE, SLICE_ELEMENTS, SLICE_READY, SLICE_USE = range(4)
PART, PIECE_ELEMENTS = range(2)
VARIABLE, AXIS, BEGIN, END, PART_ELEMENTS = range(5)

# The columns of stamps. A stamp applies a list of steps to slices `FROM` to `TO` of a message; its first operation is
# at `POSITION` in the plan. `NORM_AT` is the norm that updates wait for, if any; `ROUND_AT` is where the round begins.
# In the stamp of a norm, `NORM_AT` to `ROUND_AT` are instead the entries of `near` that it waits for.
POSITION, LIST, MESSAGE, FROM, TO, NORM_AT, ROUND_AT, NUM_STAMP_COLUMNS = range(8)


class Variables(NamedTuple):
    """A model's variables: their table, the rows of each embedding that one rank touches, and the sizes of all axes.

    A scalar has one axis of size 1.
    """

    table: Integers
    touched_rows: Floats
    first_axis: Integers
    axis_size: Integers


class Templates(NamedTuple):
    """Templates: their table, the number that each codec needs (block or ratio), their lists of steps, their waits."""

    table: Integers
    codec_number: Floats
    lists: Integers
    steps: Integers
    waits: Integers
    done: Integers


class Slices(NamedTuple):
    """A batch of strategies in canonical form, cut into slices; `amounts` gives the size of each slice in each measure.

    The tables of strategies, messages and slices have one extra row, which says where the last entries end.
    """

    strategies: Integers
    messages: Integers
    slices: Integers
    pieces: Integers
    parts: Integers
    amounts: Integers


class Stamps(NamedTuple):
    """The stamps of a batch of plans, in order.

    `first` and `first_operation` say where the stamps and the operations of each plan begin. `collected` is, for each
    slice, the position in the plan of the first operation that collects its gradient. `near` lists the norms that other
    norms wait for.
    """

    table: Integers
    first: Integers
    first_operation: Integers
    collected: Integers
    near: Integers


class Plans(NamedTuple):
    """A batch of plans as tables, one behind the other.

    Plan i has the operations `first_operation[i]` to `first_operation[i + 1]`; its edges, gates and gates' edges are
    found in the same way. The beginning of an operation's edges is counted within its plan, and each plan has one extra
    entry, which says where its last edges end: the entries of plan i are `operations.after.first` from
    `first_operation[i] + i` on. Targets are positions in the plan. Shapes and costs are numbered as in the lowering.
    `by_users` marks the updates that the user's optimizer makes; they change `users_elements` elements in all.
    """

    first_operation: Integers
    first_edge: Integers
    first_gate: Integers
    first_gate_edge: Integers
    operations: Operations
    gates: Gates
    by_users: Flags
    users_elements: Integers
