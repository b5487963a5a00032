"""A plan as columns of numbers, for simulators and other compiled code.

The tuples of a plan suit people and the runtime; columns suit code that handles a thousand plans a second. `tables_of`
makes the columns of a plan. Names become positions: collectives, algorithms, kinds of local work and kinds of gates in
the tuples of names below, costs and shapes in the tables' own lists. A column that has no meaning for a transfer or for
a local operation is -1. Regions are left out: they say where numbers lie, which does not change the cost of moving
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from autosync.plan.types import (
    Algorithm,
    Collective,
    Edge,
    Event,
    GateKind,
    Groups,
    LocalKind,
    NamedAlgorithm,
    Operation,
    Plan,
    Transfer,
    Weights,
)
from autosync.strategy.shapes.trees import TreeShape

Integers = npt.NDArray[np.int64]

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ALGORITHMS: tuple[str, ...] = (*get_args(NamedAlgorithm), "trees")
"""The names of algorithms; the last stands for all shapes."""
LOCAL_KINDS: tuple[LocalKind, ...] = get_args(LocalKind)
EVENTS: tuple[Event, ...] = get_args(Event)
GATE_KINDS: tuple[GateKind, ...] = get_args(GateKind)


class Shape(NamedTuple):
    """The ranks that take part in an operation, and the collective and algorithm (None for local work).

    `weights` are those of the shards of local work.
    """

    collective: Collective | None
    algorithm: Algorithm | None
    groups: Groups
    within: Groups = ()
    weights: Weights = ()


class Edges(NamedTuple):
    """The edges that the rows of another table wait for: row i waits for the edges `first[i]` to `first[i + 1]`."""

    first: Integers
    event: Integers
    target: Integers
    lag: Integers


class Operations(NamedTuple):
    """The operations of a plan, one in each row, in the plan's order; columns are the fields of `Transfer` and `Local`.

    `kind` is the collective of a transfer or the kind of local work. `cost` is a position in `Tables.costs`, `shape`
    a position in `Tables.shapes`.
    """

    is_transfer: npt.NDArray[np.bool_]
    kind: Integers
    algorithm: Integers
    shape: Integers
    num_elements: Integers
    item_bytes: Integers
    lane: Integers
    priority: Integers
    message: Integers
    every: Integers
    cost: Integers
    sharded: npt.NDArray[np.bool_]
    after: Edges


class Gates(NamedTuple):
    """The gates of a plan, one in each row, in the plan's order."""

    kind: Integers
    variable: Integers
    after: Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A plan's operations and gates as columns."""

    num_ranks: int
    num_workers: int
    num_queues: int
    costs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    operations: Operations
    gates: Gates


def tables_of(plan: Plan) -> Tables:
    """Return the columns of a plan."""
    costs: dict[str, int] = {}
    shapes: dict[Shape, int] = {}
    rows: list[tuple[int, ...]] = []
    for one in plan.operations:
        shape = shapes.setdefault(shape_of(one), len(shapes))
        if isinstance(one, Transfer):
            kind, algorithm = COLLECTIVES.index(one.collective), algorithm_number(one.algorithm)
            size, lane = (one.num_elements, one.item_bytes), (one.lane, one.priority)
            rows.append((1, kind, algorithm, shape, *size, *lane, one.message, one.every, -1, 0))
        else:
            kind, cost = LOCAL_KINDS.index(one.kind), costs.setdefault(one.cost, len(costs))
            rows.append((0, kind, -1, shape, one.num_elements, -1, -1, -1, one.message, one.every, cost, one.sharded))
    columns = _columns(rows, len(Operations._fields) - 1)
    is_transfer, *others, sharded = columns
    gates = _columns([(GATE_KINDS.index(gate.kind), gate.variable) for gate in plan.gates], 2)
    return Tables(
        num_ranks=len(plan.ranks),
        num_workers=plan.num_workers,
        num_queues=1 + max(plan.queues, default=-1),
        costs=tuple(costs),
        shapes=tuple(shapes),
        operations=Operations._make(
            [is_transfer == 1, *others, sharded == 1, _edges([one.after for one in plan.operations])]
        ),
        gates=Gates._make([*gates, _edges([gate.after for gate in plan.gates])]),
    )


def algorithm_number(algorithm: Algorithm) -> int:
    """Return the position of an algorithm in `ALGORITHMS`."""
    return ALGORITHMS.index("trees" if isinstance(algorithm, TreeShape) else algorithm)


def shape_of(operation: Operation) -> Shape:
    """Return the shape of an operation: the ranks that take part, and how."""
    if isinstance(operation, Transfer):
        return Shape(operation.collective, operation.algorithm, operation.groups, operation.within)
    return Shape(None, None, operation.groups, weights=operation.weights)


def _columns(rows: Sequence[tuple[int, ...]], num_columns: int) -> list[Integers]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), num_columns)
    return list(np.ascontiguousarray(table.T))


def _edges(waits: Sequence[Iterable[Edge]]) -> Edges:
    rows = [[(EVENTS.index(edge.event), edge.target, edge.lag) for edge in edges] for edges in waits]
    first = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=first[1:])
    return Edges(first, *_columns([edge for row in rows for edge in row], 3))
