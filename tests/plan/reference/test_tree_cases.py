"""Strategies over trees through the reference: exact, free of deadlock, and the bytes of the closed form."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autosync.plan.lowering import lower
from autosync.plan.reference import Workload, interpret
from autosync.plan.types import Plan, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shapes.levels import worker_racks
from autosync.strategy.shapes.trees import TreeShape, TreeShare
from tests.plan.reference import plan_properties as properties
from tests.plan.reference.plan_bytes import BrokenError, check_bytes
from tests.plan.reference.tree_cases import draw_over_trees

EVERYWHERE = {"legal", "yaml", "json", "strategy_id", "one plan", "plan_id", "no deadlock", "bytes"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_strategies_over_trees_have_every_property(seed: int) -> None:
    result = properties.try_all(draw_over_trees(random.Random(f"trees {seed}"), 50))
    assert result["failures"] == []
    assert {name: result["held"][name] for name in EVERYWHERE} == dict.fromkeys(EVERYWHERE, 50)
    assert result["held"]["exact"] > 20


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_levels_by_collectives_have_every_property(seed: int) -> None:
    cases = list(draw_over_trees(random.Random(f"levels {seed}"), 50, backend="nccl"))
    result = properties.try_all(iter(cases))
    assert result["failures"] == []
    assert {name: result["held"][name] for name in EVERYWHERE} == dict.fromkeys(EVERYWHERE, 50)
    assert any(_meets_across_racks(lower(case.strategy, case.model, case.cluster), case.cluster) for case in cases)


def _meets_across_racks(plan: Plan, cluster: ClusterSpec) -> bool:
    """Whether ranks at the same position in several racks of two ranks or more exchange their chunks."""
    racks = [sum(rack, ()) for rack in worker_racks(cluster)]
    groups = {one.within for one in plan.operations if isinstance(one, Transfer) and one.algorithm == "native"}
    return bool(cluster.racks) and tuple(rack for rack in racks if len(rack) > 1) in groups


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_strategies_over_trees_have_every_property() -> None:
    result = properties.try_all(draw_over_trees(random.Random(29), 10_000))
    assert result["failures"] == []
    assert {name: result["held"][name] for name in EVERYWHERE} == dict.fromkeys(EVERYWHERE, 10_000)


def _by_chains(plan: Plan) -> Plan:
    """The same plan with a chain instead of every transfer's trees."""
    operations = [
        one._replace(algorithm=TreeShape(shares=(TreeShare(up=(0, *range(len(one.groups[0]) - 1))),)))
        if isinstance(one, Transfer) and isinstance(one.algorithm, TreeShape)
        else one
        for one in plan.operations
    ]
    return replace(plan, operations=tuple(operations))


def test_bytes_of_other_trees_are_noticed() -> None:
    """A plan that runs over other trees than the strategy's sends other bytes over some link."""
    noticed = 0
    for case in draw_over_trees(random.Random(5), 40):
        plan = lower(case.strategy, case.model, case.cluster)
        if len(case.cluster.worker_groups()) < 3:
            continue
        outcome = interpret(_by_chains(plan), Workload(model=case.model, seed=1), num_steps=1, rng=random.Random(0))
        try:
            list(check_bytes(plan, case.cluster, outcome.sent))
        except BrokenError:
            noticed += 1
    assert noticed > 5
