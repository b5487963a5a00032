"""The one lowering: what holds of every plan."""

from __future__ import annotations

import functools
import gc
import random
import subprocess
import sys

import pytest

from autosync.plan.lowering import lower
from autosync.plan.types import Plan, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.canonical import canonical, strategy_id
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import cluster_of, examples, model_with, plan_of
from tests.helpers.random_specs import random_cluster, random_model

NUM_RANDOM = 60


@functools.cache
def random_plans() -> list[tuple[Strategy, ModelSpec, ClusterSpec]]:
    rng = random.Random(5)
    found = []
    for _ in range(NUM_RANDOM):
        model, cluster = random_model(rng), random_cluster(rng)
        limits = Limits(allow=("lossy", "stale"), slice_bytes=(1024, 4096), max_parts=5)
        found.append((Space(model=model, cluster=cluster, limits=limits).sample(rng), model, cluster))
    return found


@pytest.mark.parametrize("number", range(NUM_RANDOM))
def test_what_holds_of_every_plan(number: int) -> None:
    strategy, model, cluster = random_plans()[number]
    plan = lower(strategy, model, cluster)
    assert plan == lower(strategy, model, cluster)
    assert plan == lower(canonical(strategy, model, cluster), model, cluster)
    assert (plan.model, plan.cluster) == (model.fingerprint(), cluster.fingerprint())
    _check_order(plan)
    _check_lanes(plan, canonical(strategy, model, cluster))
    _check_elements(plan)
    _check_gates(plan, model)


def _check_order(plan: Plan) -> None:
    """Everything comes after what it waits for in the same iteration."""
    for index, operation in enumerate(plan.operations):
        for edge in operation.after:
            if edge.event == "operation":
                assert 0 <= edge.target < len(plan.operations)
                assert edge.lag > 0 or edge.target < index
            assert edge.lag >= 0
        assert len(set(operation.after)) == len(operation.after)


def _check_lanes(plan: Plan, strategy: Strategy) -> None:
    """The stages of a message have queues of their own, and only messages of one lane share them."""
    assert plan.num_lanes == strategy.num_lanes
    for operation in plan.operations:
        if isinstance(operation, Transfer):
            message = strategy.messages[operation.message]
            is_norm = plan.regions[operation.regions[0]].kind == "norm"
            assert is_norm or plan.lane_of(operation) == message.lane
            assert operation.priority == message.priority
            assert operation.lane in plan.queues


def _check_elements(plan: Plan) -> None:
    """Every element of every part is updated once on each holder's behalf, and sizes are those of the regions."""
    updated: dict[int, list[tuple[int, int]]] = {index: [] for index in range(len(plan.parts))}
    for operation in plan.operations:
        if isinstance(operation, Transfer):
            regions = [plan.regions[index] for index in operation.regions]
            if all(region.kind in {"grad", "param", "incoming", "left", "right", "norm"} for region in regions):
                assert operation.num_elements == operation.max_elements == sum(r.num_elements for r in regions)
            assert operation.num_elements <= operation.max_elements
            ranks = [rank for group in operation.groups for rank in group]
            assert len(set(ranks)) == len(ranks)
        elif operation.kind == "update":
            for index in operation.outputs:
                region = plan.regions[index]
                updated[region.part].append((region.start, region.stop))
    for index, ranges in updated.items():
        position = 0
        for start, stop in sorted(ranges):
            assert start == position
            position = stop
        assert position == plan.parts[index].num_elements


def _check_gates(plan: Plan, model: ModelSpec) -> None:
    if plan.overlap == "backward":
        assert [gate.kind for gate in plan.gates] == ["backward_returns", "step_returns"]
        assert all(edge.lag == 0 or edge.event == "operation" for gate in plan.gates for edge in gate.after)
    else:
        assert [(gate.kind, gate.variable) for gate in plan.gates] == [
            ("before_use", index) for index in range(len(model.variables))
        ]
        assert all(gate.after and all(edge.lag >= 1 for edge in gate.after) for gate in plan.gates)


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_strategies_of_one_id_have_one_plan(overlap: Overlap) -> None:
    model, cluster = examples(overlap)["all_reduce"].model, cluster_of(1, 1)
    ways = [
        Strategy(overlap=overlap, messages=(Message(parts=("bias", "linear", "table")),)),
        Strategy(overlap=overlap, name="named", messages=(Message(parts=("table", "linear", "bias"), priority=7),)),
        Strategy(
            overlap=overlap,
            partitions={"linear": Partition(axis=0, sizes=(1, 3))},
            messages=(Message(parts=("linear[1]", "bias", "linear[0]", "table"), lane=3, slice_bytes=1 << 20),),
        ),
        Strategy(
            overlap=overlap,
            messages=(Message(parts=("bias", "linear", "table"), synchroniser=AllReduce(hierarchical=True)),),
        ),
    ]
    assert len({strategy_id(way, model, cluster) for way in ways}) == 1
    plans = [lower(way, model, cluster) for way in ways]
    assert all(plan == plans[0] for plan in plans)


def test_collecting_follows_readiness_and_settling_follows_use() -> None:
    plan = examples("forward")["sharded"].plan()
    collected = [str(plan.parts[plan.regions[o.inputs[0]].part].name) for o in _locals(plan, "average")]
    settled = [str(plan.parts[plan.regions[o.inputs[0]].part].name) for o in _locals(plan, "update")]
    assert collected == ["bias", "linear", "table"]
    assert settled == ["table", "linear", "bias"]


def _locals(plan: Plan, kind: str) -> list[object]:
    return [o for o in plan.operations if not isinstance(o, Transfer) and o.kind == kind]


def test_slices_fill_up_across_parts() -> None:
    variables = tuple(
        Variable(name=name, shape=(200,), use=use, ready=2 - use) for use, name in enumerate(("a", "b", "c"))
    )
    message = Message(parts=("a", "b", "c"), slice_bytes=1024)
    plan = lower(Strategy(messages=(message,)), model_with(*variables), cluster_of(1, 1))
    slices = [
        [(str(plan.parts[r.part].name), r.start, r.stop) for r in (plan.regions[index] for index in o.regions)]
        for o in plan.operations
        if isinstance(o, Transfer)
    ]
    assert slices == [[("c", 0, 200), ("b", 0, 56)], [("b", 56, 200), ("a", 0, 112)], [("a", 112, 200)]]
    waits = [o.after for o in plan.operations if isinstance(o, Transfer)]
    assert [[edge.target for edge in after] for after in waits] == [[2, 1], [1, 0], [0]]
    (update,) = _locals(plan, "update")
    assert [plan.regions[index].num_elements for index in update.outputs] == [200, 56, 144, 112, 88]  # type: ignore[attr-defined]


def test_a_norm_goes_to_servers_in_use_only() -> None:
    plan = plan_of(ParameterServer(server="n3"), 1, 1, 0, 0, clip_norm=1.0)
    (total,) = [o for o in plan.operations if isinstance(o, Transfer) and plan.regions[o.regions[0]].kind == "norm"]
    assert total.groups == ((0, 1, 3),)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_left_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        plan_of(AllReduce(), 1, 1)
        assert gc.isenabled() == is_on
        with pytest.raises(KeyError):
            plan_of(ParameterServer(server="nobody"), 1, 1)
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_lowering_imports_no_torch() -> None:
    code = "import sys, autosync.plan.lowering, autosync.plan.reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
