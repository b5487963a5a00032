"""The columns of a plan say what the plan says."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.tables import (
    ALGORITHMS,
    COLLECTIVES,
    EVENTS,
    GATE_KINDS,
    LOCAL_KINDS,
    Edges,
    Tables,
    tables_of,
)
from autosync.plan.types import Edge, Gate, Local, Transfer
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.space import Space
from tests.helpers.random_specs import random_cluster, random_model


def edges_of(edges: Edges, row: int) -> tuple[Edge, ...]:
    found = range(edges.first[row], edges.first[row + 1])
    return tuple(Edge(EVENTS[edges.event[i]], int(edges.target[i]), int(edges.lag[i])) for i in found)


def operation_of(tables: Tables, row: int) -> Transfer | Local:
    """The operation that a row stands for, but for its regions, its largest size and its codec's settings."""
    table = tables.operations
    shape, after = tables.shapes[table.shape[row]], edges_of(table.after, row)
    numbers = {name: int(getattr(table, name)[row]) for name in ("num_elements", "message", "every")}
    if table.is_transfer[row]:
        more = {name: int(getattr(table, name)[row]) for name in ("item_bytes", "lane", "priority")}
        kind, algorithm = COLLECTIVES[table.kind[row]], shape.algorithm
        assert shape.collective == kind
        assert ALGORITHMS[table.algorithm[row]] == ("trees" if isinstance(algorithm, TreeShape) else algorithm)
        more |= {"max_elements": 0}
        return Transfer(kind, algorithm, shape.groups, (), within=shape.within, after=after, **numbers, **more)
    cost, sharded = tables.costs[table.cost[row]], bool(table.sharded[row])
    kind, more = LOCAL_KINDS[table.kind[row]], {"after": after, "weights": shape.weights}
    return Local(kind, cost, shape.groups, sharded, (), (), **numbers, **more)


@given(seed=st.integers(0, 2**32))
def test_every_operation_and_gate_can_be_read_back(seed: int) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    plan = lower(Space(model=model, cluster=cluster).sample(rng), model, cluster)
    tables = tables_of(plan)
    for row, operation in enumerate(plan.operations):
        bare = (
            operation._replace(regions=(), max_elements=0)
            if isinstance(operation, Transfer)
            else operation._replace(inputs=(), outputs=(), settings=None)
        )
        assert operation_of(tables, row) == bare
    gates = tables.gates
    read = [
        Gate(GATE_KINDS[gates.kind[i]], int(gates.variable[i]), edges_of(gates.after, i))
        for i in range(len(gates.kind))
    ]
    assert tuple(read) == plan.gates
    assert (tables.num_ranks, tables.num_workers) == (len(plan.ranks), plan.num_workers)
    assert tables.num_queues == 1 + max(plan.queues, default=-1)
