"""Takes one plan out of a compiled batch, in the form of `plan.tables`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.plan.compiled.data import Integers, Plans
from autosync.plan.compiled.jit import called
from autosync.plan.tables import Edges, Gates, Operations, Shape, Tables
from autosync.specs.cluster import ClusterSpec


def tables_at(
    plans: Plans, number: int, cluster: ClusterSpec, *, shapes: Sequence[Shape], costs: Sequence[str]
) -> Tables:
    """Return the tables of a plan with only the shapes and costs that it uses, out of all those of the lowering."""
    operations = operations_at(plans, number)
    shape, used_shapes = numbered(operations.shape, len(shapes))
    cost, used_costs = numbered(operations.cost, len(costs))
    return Tables(
        num_ranks=len(cluster.ranks),
        num_workers=cluster.num_workers,
        num_queues=1 + int(operations.lane.max()),
        costs=tuple([costs[one] for one in used_costs]),
        shapes=tuple([shapes[one] for one in used_shapes]),
        operations=operations._replace(shape=shape, cost=cost),
        gates=gates_at(plans, number),
    )


def operations_at(plans: Plans, number: int) -> Operations:
    """Return views of the operations of a plan; shapes and costs keep the lowering's numbers."""
    begin, end = int(plans.first_operation[number]), int(plans.first_operation[number + 1])
    rows = slice(begin, end)
    edges = slice(int(plans.first_edge[number]), int(plans.first_edge[number + 1]))
    after = _edges_at(plans.operations.after, slice(begin + number, end + number + 1), edges)
    return Operations._make([*[column[rows] for column in plans.operations[:-1]], after])


def gates_at(plans: Plans, number: int) -> Gates:
    """Return views of the gates of a plan."""
    begin, end = int(plans.first_gate[number]), int(plans.first_gate[number + 1])
    edges = slice(int(plans.first_gate_edge[number]), int(plans.first_gate_edge[number + 1]))
    after = _edges_at(plans.gates.after, slice(begin + number, end + number + 1), edges)
    return Gates(plans.gates.kind[begin:end], plans.gates.variable[begin:end], after)


def _edges_at(edges: Edges, rows: slice, columns: slice) -> Edges:
    return Edges(edges.first[rows], edges.event[columns], edges.target[columns], edges.lag[columns])


@called
def numbered(column: Integers, count: int) -> tuple[Integers, Integers]:
    """Renumber a column by first appearance and return the old number of each new one; -1 stays -1.

    The old numbers are below `count`.
    """
    place, found, seen = np.full(count, -1), np.empty(count, np.int64), 0
    numbers = np.empty(len(column), np.int64)
    for row, one in enumerate(column):
        if one >= 0 and place[one] < 0:
            place[one], found[seen] = seen, one
            seen += 1
        numbers[row] = place[one] if one >= 0 else -1
    return numbers, found[:seen]
