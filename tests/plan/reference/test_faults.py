"""The reference can fail: what is taken out of a plan shows, as a wrong result, NaN, a deadlock or an early read.

Every edge of every example is either implied by the others (whoever waits for those has waited for it) or load-bearing:
without it some legal order goes wrong. So no edge is without a reason, and the reference is not too kind to notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosync.errors import DeadlockError
from autosync.plan.reference import Workload, interpret
from autosync.plan.reference.progress import Progress
from autosync.plan.reference.store import TooEarlyError
from autosync.plan.reference.workload import Array
from autosync.plan.types import Edge, Local, Operation, Plan, Transfer
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap
from autosync.strategy.shapes.trees import Parents, TreeShape
from tests.helpers.example_plans import examples

NUM_STEPS = 5
NUM_ORDERS = 200
OVERLAPS: tuple[Overlap, ...] = ("backward", "forward")
CASES = [(name, overlap) for overlap in OVERLAPS for name in examples(overlap)]
# These combine what others have alone.
COMBINED = {
    "server apart, clipped",
    "server among workers, proxies",
    "server, workers update, proxies",
    "server, workers update, cast",
    "server apart, stale",
    "server, stale, int8",
    "rows at server apart",
    "rows at server, workers update",
    "periodic, clipped",
}
# Removing each edge in turn takes a second for each example: one overlap is quick, in turn.
IN_TURN = [
    pytest.param(name, overlap, marks=pytest.mark.slow if (number + place) % 2 or name in COMBINED else ())
    for number, name in enumerate(examples("backward"))
    for place, overlap in enumerate(OVERLAPS)
]


Results = Sequence[Mapping[str, Array]]


def run(plan: Plan, model: ModelSpec, seed: int = 0) -> Sequence[Mapping[str, Array]]:
    """Every worker's parameters after some steps in one random order."""
    return interpret(plan, Workload(model=model), num_steps=NUM_STEPS, rng=random.Random(seed)).parameters


def fault(plan: Plan, model: ModelSpec, good: Sequence[Mapping[str, Array]], *, num_orders: int) -> str:
    """What the reference finds wrong with a plan in one of so many orders; nothing if all is as it was in `good`."""
    for seed in range(num_orders):
        try:
            found = run(plan, model, seed)
        except DeadlockError:
            return "deadlock"
        except TooEarlyError:
            return "too early"
        for one, other in zip(found, good, strict=True):
            for name, value in one.items():
                if np.isnan(value).any():
                    return "nan"
                if not np.array_equal(value, other[name]):
                    return "wrong"
    return ""


def with_operation(plan: Plan, index: int, operation: Operation) -> Plan:
    """The plan with one operation in the place of another."""
    return replace(plan, operations=(*plan.operations[:index], operation, *plan.operations[index + 1 :]))


def edges(plan: Plan) -> Iterator[tuple[str, int, Edge]]:
    """All edges: of which list, at which position, the edge."""
    for index, operation in enumerate(plan.operations):
        for edge in operation.after:
            yield "operations", index, edge
    for index, gate in enumerate(plan.gates):
        for edge in gate.after:
            yield "gates", index, edge


def without_edge(plan: Plan, where: str, index: int, edge: Edge) -> Plan:
    """The plan without one edge."""
    if where == "operations":
        operation = plan.operations[index]
        return with_operation(plan, index, operation._replace(after=_without(operation.after, edge)))
    gates = list(plan.gates)
    gates[index] = gates[index]._replace(after=_without(gates[index].after, edge))
    return replace(plan, gates=tuple(gates))


def _without(after: tuple[Edge, ...], edge: Edge) -> tuple[Edge, ...]:
    return tuple(other for other in after if other != edge)


class Waits:
    """What has happened, for sure, once something may begin: the closure of edges, lanes and groups, within a step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._groups = [{rank: group for group in o.groups for rank in group} for o in plan.operations]
        self._gates = {(gate.kind, gate.variable): gate for gate in plan.gates}

    def imply(self, edge: Edge, after: Sequence[Edge], ranks: Sequence[int], lane: int | None, before: int) -> bool:
        """Whether ranks that begin together (a member each) have waited for an edge on every rank where it counts."""
        known: set[tuple[str, int, int, int]] = set()
        for rank in ranks:
            for other in after:
                self._add(known, other, rank)
            if lane is not None:
                self._add_lane(known, rank, lane, before, 0)
        return all(self._key(edge, rank) in known for rank in ranks if self._counts(edge, rank))

    def _counts(self, edge: Edge, rank: int) -> bool:
        if edge.event == "operation":
            return rank in self._groups[edge.target]
        return edge.event == "step_called" or self._plan.ranks[rank].role == "worker"

    def _key(self, edge: Edge, rank: int) -> tuple[str, int, int, int]:
        return (edge.event, edge.target, edge.lag, rank)

    def _add(self, known: set[tuple[str, int, int, int]], edge: Edge, rank: int) -> None:
        key = self._key(edge, rank)
        if key in known or edge.lag >= NUM_STEPS or not self._counts(edge, rank):
            return
        known.add(key)
        if edge.event == "step_called":
            # A server's step is called when the first worker's is.
            caller = rank if self._plan.ranks[rank].role == "worker" else 0
            for variable in range(len({part.variable.name for part in self._plan.parts})):
                self._add(known, Edge("grad_ready", variable, edge.lag), caller)
            gate = self._gates.get(("backward_returns", -1))
            for other in gate.after if gate else ():
                self._add(known, other._replace(lag=other.lag + edge.lag), caller)
        if edge.event != "operation":
            return
        operation = self._plan.operations[edge.target]
        together = self._groups[edge.target][rank] if isinstance(operation, Transfer) else (rank,)
        for member in together:
            known.add(self._key(edge, member))
            for other in operation.after:
                self._add(known, other._replace(lag=other.lag + edge.lag), member)
            if isinstance(operation, Transfer):
                self._add_lane(known, member, operation.lane, edge.target, edge.lag)

    def _add_lane(self, known: set[tuple[str, int, int, int]], rank: int, lane: int, before: int, lag: int) -> None:
        """The transfer that is ahead in the lane on a rank."""
        for index in range(before - 1, -1, -1):
            operation = self._plan.operations[index]
            if isinstance(operation, Transfer) and operation.lane == lane and rank in self._groups[index]:
                self._add(known, Edge("operation", index, lag), rank)
                return


def is_implied(plan: Plan, where: str, index: int, edge: Edge) -> bool:
    """Whether whoever waits for the other edges has waited for this one."""
    waits = Waits(plan)
    if where == "gates":
        others = tuple(other for other in plan.gates[index].after if other != edge)
        return all(waits.imply(edge, others, (rank,), None, 0) for rank in range(plan.num_workers))
    operation = plan.operations[index]
    others = tuple(other for other in operation.after if other != edge)
    if isinstance(operation, Transfer):
        return all(waits.imply(edge, others, group, operation.lane, index) for group in operation.groups)
    return all(waits.imply(edge, others, (rank,), None, 0) for group in operation.groups for rank in group)


def _keeps_sums_apart(plan: Plan, where: str, index: int, edge: Edge) -> bool:
    """Two that add to one number may come in either order, but not at once; here nothing happens at once."""
    if where == "gates" or edge.event != "operation":
        return False
    one, other = plan.operations[index], plan.operations[edge.target]
    return isinstance(one, Local) and isinstance(other, Local) and one.kind == other.kind == "norm"


@pytest.mark.parametrize(("name", "overlap"), IN_TURN)
def test_every_edge_is_implied_or_load_bearing(name: str, overlap: Overlap) -> None:
    example = examples(overlap)[name]
    plan = example.plan()
    good = run(plan, example.model)
    assert not fault(plan, example.model, good, num_orders=5)
    for where, index, edge in edges(plan):
        if is_implied(plan, where, index, edge) or _keeps_sums_apart(plan, where, index, edge):
            continue
        broken = without_edge(plan, where, index, edge)
        found = fault(broken, example.model, good, num_orders=NUM_ORDERS)
        assert found, f"{where}[{index}] need not wait for {edge}: {getattr(plan, where)[index]}"


@pytest.mark.parametrize(("name", "overlap"), CASES)
def test_no_plan_works_without_gates(name: str, overlap: Overlap) -> None:
    example = examples(overlap)[name]
    plan = example.plan()
    assert fault(replace(plan, gates=()), example.model, run(plan, example.model), num_orders=NUM_ORDERS)


Change = Callable[[Operation], Operation]


def _nobody(operation: Operation) -> Operation:
    return operation._replace(groups=())


def _another_root(operation: Operation) -> Operation:
    return operation._replace(groups=tuple((*group[1:], group[0]) for group in operation.groups))


def _one_less(operation: Operation) -> Operation:
    return operation._replace(groups=tuple(group[:-1] for group in operation.groups))


def _not_waiting_for_operations(operation: Operation) -> Operation:
    return operation._replace(after=tuple(edge for edge in operation.after if edge.event != "operation"))


def _whole(operation: Operation) -> Operation:
    assert isinstance(operation, Local)
    return operation._replace(sharded=False)


def _within_the_other_way(operation: Operation) -> Operation:
    assert isinstance(operation, Transfer)
    return operation._replace(within=tuple(group[::-1] for group in operation.within))


def _every_step(operation: Operation) -> Operation:
    return operation._replace(every=1)


def _less_lag(operation: Operation) -> Operation:
    return operation._replace(after=tuple(edge._replace(lag=max(0, edge.lag - 1)) for edge in operation.after))


def _roots_passed_on(operation: Operation) -> Operation:
    """The same trees with every rank in the place of the one before it, so that other ranks are the roots."""
    assert isinstance(operation, Transfer)
    assert isinstance(operation.algorithm, TreeShape)
    shares = tuple(
        replace(share, up=_passed_on(share.up), down=_passed_on(share.down)) for share in operation.algorithm.shares
    )
    return operation._replace(algorithm=TreeShape(shares=shares))


def _passed_on(parents: Parents) -> Parents:
    count = len(parents)
    return tuple((parents[rank - 1] + 1) % count for rank in range(count))


def _one_unit_more(operation: Operation) -> Operation:
    """A shard with a unit of the one before it."""
    assert isinstance(operation, Local)
    first, second, *others = operation.weights
    return operation._replace(weights=(first - 1, second + 1, *others))


MUTANTS: list[tuple[str, str, Change]] = [
    ("all_reduce", "average", _nobody),
    ("all_reduce", "all_reduce", _nobody),
    ("all_reduce", "all_reduce", _one_less),
    ("all_reduce", "update", _nobody),
    ("all_reduce", "update", _one_less),
    ("all_reduce clipped", "norm", _nobody),
    ("hierarchical, equal nodes", "all_reduce", _within_the_other_way),
    ("hierarchical, equal nodes", "all_gather", _nobody),
    ("hierarchical, unequal nodes", "reduce", _another_root),
    ("hierarchical, unequal nodes", "broadcast", _nobody),
    ("server", "reduce", _another_root),
    ("server", "broadcast", _another_root),
    ("server", "average", _nobody),
    ("server apart", "update", _nobody),
    ("server apart, clipped", "all_reduce", _one_less),
    ("server, proxies", "reduce", _another_root),
    ("server, workers update", "broadcast", _nobody),
    ("server, stale", "take", _nobody),
    ("server, stale", "take", _less_lag),
    ("server, stale", "copy", _nobody),
    ("rows", "merge_rows", _nobody),
    ("rows at server", "gather_v", _another_root),
    ("rows at server", "write_rows", _nobody),
    ("rows at server, stale", "write_rows", _less_lag),
    ("factors", "rebuild", _nobody),
    ("factors", "all_gather_v", _one_less),
    ("sharded", "average", _nobody),
    ("sharded", "all_gather", _nobody),
    ("sharded, clipped", "norm", _whole),
    ("sharded, clipped", "all_reduce", _nobody),
    ("sharded, clipped", "update", _not_waiting_for_operations),
    ("sharded over trees", "reduce_scatter", _roots_passed_on),
    ("sharded over trees", "all_gather", _roots_passed_on),
    ("sharded over trees", "average", _one_unit_more),
    ("sharded over trees", "update", _one_unit_more),
    ("sharded over trees", "norm", _one_unit_more),
    ("periodic", "all_reduce", _every_step),
    ("periodic", "average", _nobody),
    ("periodic, clipped", "norm", _nobody),
    ("periodic, outer", "outer", _nobody),
    ("int8", "decode", _nobody),
    ("power_sgd", "project", _nobody),
]


def _changed(plan: Plan, kind: str, change: Change) -> Iterator[Plan]:
    """Plans in which one operation of that kind is changed."""
    for index, operation in enumerate(plan.operations):
        name = operation.collective if isinstance(operation, Transfer) else operation.kind
        if name == kind:
            yield with_operation(plan, index, change(operation))


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(("name", "kind", "change"), MUTANTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_changed_operation_shows(name: str, kind: str, change: Change, overlap: Overlap) -> None:
    example = examples(overlap)[name]
    plan = example.plan()
    good = run(plan, example.model)
    mutants = list(_changed(plan, kind, change))
    assert mutants
    for mutant in mutants:
        assert fault(mutant, example.model, good, num_orders=5)


def test_ranks_that_order_a_lane_differently_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    example = examples("backward")["all_reduce"]
    plan = example.plan()
    one_lane = replace(
        plan,
        operations=tuple(o._replace(lane=0) if isinstance(o, Transfer) else o for o in plan.operations),
    )
    good = run(plan, example.model)
    assert not fault(one_lane, example.model, good, num_orders=5)
    in_order = Progress.operations_of
    monkeypatch.setattr(Progress, "operations_of", lambda self, rank: in_order(self, rank)[:: -1 if rank == 1 else 1])
    with pytest.raises(DeadlockError, match="rank 1 lane 0: operation"):
        run(one_lane, example.model)


def test_a_lane_that_is_not_in_the_order_of_waiting_deadlocks() -> None:
    example = examples("backward")["hierarchical, equal nodes"]
    plan = example.plan()
    transfers = [index for index, operation in enumerate(plan.operations) if isinstance(operation, Transfer)]
    operations = list(plan.operations)
    for index in transfers:
        operations[index] = operations[index]._replace(lane=0)
    one_lane = replace(plan, operations=tuple(operations))
    assert not fault(one_lane, example.model, run(plan, example.model), num_orders=5)
    # The all-reduce between nodes before the reduce-scatter within them, which it waits for.
    first, second = transfers[:2]
    operations[first], operations[second] = operations[second], operations[first]
    renamed = {first: second, second: first}
    moved = tuple(
        operation._replace(
            after=tuple(
                edge._replace(target=renamed.get(edge.target, edge.target)) if edge.event == "operation" else edge
                for edge in operation.after
            )
        )
        for operation in operations
    )
    with pytest.raises(DeadlockError, match="nothing can go on"):
        run(replace(plan, operations=moved), example.model)
