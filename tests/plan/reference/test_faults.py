"""The reference can fail: what is taken out of a correct plan shows, as a wrong result, NaN, a deadlock or a read too early.

Every edge of every example is either implied by the others (whoever waits for those has waited for it) or load-bearing: without it
some legal order goes wrong. So no edge is missing a reason, and the reference is not too kind to notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosync.errors import DeadlockError
from autosync.plan.reference import Workload, interpret
from autosync.plan.reference.store import TooEarlyError
from autosync.plan.reference.workload import Array
from autosync.plan.types import Edge, Local, Operation, Plan, Transfer
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap
from autosync.testing.plans import Example, examples

NUM_STEPS = 5
NUM_ORDERS = 200
OVERLAPS: tuple[Overlap, ...] = ("backward", "forward")
CASES = [(name, overlap) for overlap in OVERLAPS for name in examples(overlap)]

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


@pytest.mark.parametrize(("name", "overlap"), CASES)
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
