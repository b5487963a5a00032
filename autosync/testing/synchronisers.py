"""Checks that a kind of synchroniser keeps its contract; for our kinds and those of third parties.

    from autosync.testing.synchronisers import check_synchroniser

    def test_ours() -> None:
        check_synchroniser("our_kind")

The checks draw strategies that use the kind, and all-reduce for variables that it cannot synchronise. A failed check
raises AssertionError with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from autosync import documents
from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import tables_at
from autosync.plan.lowering import lower
from autosync.plan.reference import Workload, interpret, meaning, single_process
from autosync.plan.reference.workload import Array
from autosync.plan.tables import Tables, tables_of
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import canonical
from autosync.strategy.describe import describe
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers import synchroniser_kinds
from autosync.testing.simulators import small_case

NUM_STRATEGIES = 6
NUM_STEPS = 4
_NEAR = 1e-9


def check_synchroniser(kind: str, model: ModelSpec | None = None, cluster: ClusterSpec | None = None) -> None:
    """Run all checks on a kind, on a small model and cluster unless others are given.

    The space must sample the kind. Files, the canonical form, plans as tuples and as tables, the reference and the
    analytical simulator must agree on it.
    """
    model, cluster = model or small_case().model, cluster or small_case().cluster
    strategies = strategies_with(kind, model, cluster)
    lowering = Lowering(model, cluster)
    plans = lowering.lower(lowering.encode(strategies))
    for number, strategy in enumerate(strategies):
        _check_form(strategy, model, cluster)
        tables = tables_at(plans, number, cluster, shapes=lowering.shapes, costs=lowering.costs)
        _check_tables(tables, tables_of(lower(strategy, model, cluster)))
        _check_meaning(strategy, model, cluster)
    for prediction in AnalyticalSimulator(model, cluster).predict(strategies):
        assert prediction.seconds > 0, "a step takes time"


def strategies_with(kind: str, model: ModelSpec, cluster: ClusterSpec) -> list[Strategy]:
    """Return samples, mutations and children from a space that allows this kind. Each has a message of this kind."""
    assert kind in synchroniser_kinds(), f"{kind} is in the table of synchronisers: {', '.join(synchroniser_kinds())}"
    rng = random.Random(0)
    limits = Limits(allow=("stale",), synchronisers=(kind, *(["all_reduce"] if kind != "all_reduce" else [])))
    space = Space(model=model, cluster=cluster, limits=limits)
    found: list[Strategy] = []
    for _ in range(4 * NUM_STRATEGIES):
        first, second = space.sample(rng), space.sample(rng)
        drawn = (first, space.mutate(first, rng), space.crossover(first, second, rng))
        found += [one for one in drawn if any(message.synchroniser.kind == kind for message in one.messages)]
        if len(found) >= NUM_STRATEGIES:
            break
    assert found, f"the space samples {kind}"
    return found


def _check_form(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    assert legality.problems(strategy, model, cluster) == [], "the space draws what is legal"
    text = documents.format_yaml(dump_strategy(strategy))
    assert parse_strategy(documents.parse_document(text, file="strategy.yaml")) == strategy, "files keep every field"
    form = canonical(strategy, model, cluster)
    assert canonical(form, model, cluster) == form, "the canonical form is its own"
    assert describe(strategy, model), "it can be described"


def _check_tables(found: Tables, expected: Tables) -> None:
    """Check that the compiled lowering gives the same tables as the plain lowering."""
    for name in ("num_ranks", "num_workers", "num_queues", "costs", "shapes"):
        assert getattr(found, name) == getattr(expected, name), f"tables and plan have the same {name}"
    for rows, others in ((found.operations, expected.operations), (found.gates, expected.gates)):
        for column, other in zip((*rows[:-1], *rows.after), (*others[:-1], *others.after), strict=True):
            assert np.array_equal(column, other), "tables and plan have the same operations and gates"


def _check_meaning(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Check that the plan runs to its end in any order and gives the parameters that the strategy's meaning defines."""
    plan, workload = lower(strategy, model, cluster), Workload(model=model, seed=0)
    expected = meaning(strategy, workload, num_workers=cluster.num_workers, num_steps=NUM_STEPS)
    for seed in range(2):
        outcome = interpret(plan, workload, num_steps=NUM_STEPS, rng=random.Random(seed))
        _check_near(outcome.parameters, expected, "what its strategy means")
    if strategy.is_exact:
        single = single_process(workload, num_workers=cluster.num_workers, num_steps=NUM_STEPS)
        _check_near(expected, [single] * cluster.num_workers, "what a single process makes")


def _check_near(found: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]], what: str) -> None:
    for rank, (parameters, others) in enumerate(zip(found, expected, strict=True)):
        for name, value in parameters.items():
            assert np.allclose(value, others[name], rtol=_NEAR, atol=_NEAR), f"rank {rank}: {name} is not {what}"
