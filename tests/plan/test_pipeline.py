"""The passes of stages in a plan, and the bytes between stages."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.describe import describe_plan
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.traffic import expanded_traffic, plan_traffic, transfer_traffic
from autosync.plan.types import Local, Plan, StagePass, Transfer
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule, boundary_cuts, bytes_of_microbatch
from tests.helpers.staged_models import chain, nodes, random_division


def _plan(seed: int) -> tuple[Plan, object]:
    strategy, model, cluster = random_division(random.Random(seed))
    assert legality.problems(strategy, model, cluster) == []
    return lower(strategy, model, cluster), cluster


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_bytes_of_links_are_those_of_the_moves(seed: int) -> None:
    strategy, model, cluster = random_division(random.Random(seed))
    assert legality.problems(strategy, model, cluster) == []
    plan = lower(strategy, model, cluster)
    for one in plan.operations:
        if isinstance(one, Transfer):
            np.testing.assert_array_equal(transfer_traffic(one, cluster).links, expanded_traffic(one, cluster).links)
    num_examples = model.batch_size * cluster.num_workers // strategy.microbatches
    crossing = [bytes_of_microbatch(cut, model, num_examples) or (0, 0) for cut in boundary_cuts(plan.stages, model)]
    sent = sum(one.num_bytes for one in plan.operations if isinstance(one, Transfer) and one.collective == "send")
    assert sent == strategy.microbatches * sum(map(sum, crossing))
    out = plan_traffic(plan, cluster)
    assert np.sum(out.node_out) == np.sum(out.node_in)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_each_operation_comes_after_those_that_it_waits_for(seed: int) -> None:
    plan, _ = _plan(seed)
    num_kinds = 3 if plan.splits_backward else 2
    for index, one in enumerate(plan.operations):
        assert all(edge.target < index for edge in one.after if edge.event == "operation" and not edge.lag)
    passes = Counter(
        (one.kind, one.settings.stage, one.settings.microbatch)
        for one in plan.operations
        if isinstance(one, Local) and isinstance(one.settings, StagePass)
    )
    assert set(passes.values()) == {1}
    assert len(passes) == num_kinds * len(plan.stages) * plan.microbatches


def test_a_tied_gradient_is_summed_over_both_stages() -> None:
    model = chain(4, tied=[(0, 3)])
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
    plan = lower(divided_strategy(model, stages, 4), model, nodes(1, 1))
    (tied,) = [one for one in plan.operations if isinstance(one, Transfer) and one.collective == "all_reduce"]
    assert plan.messages[tied.message] == ("w0",)
    assert tied.groups == ((0, 1),)
    assert tied.num_bytes == model.variable("w0").num_bytes


def test_swapping_equal_nodes_is_the_same_plan() -> None:
    model, cluster = chain(4), nodes(1, 1)
    names = tuple(node.name for node in cluster.nodes)
    alike = type(cluster)(name="test", nodes=cluster.nodes, alike=(names,))
    found = set()
    for ranks in ((0, 1), (1, 0)):
        stages = [ModelStage(before=2 * number, ranks=(rank,)) for number, rank in enumerate(ranks)]
        found.add(plan_id(lower(divided_strategy(model, stages, 4), model, alike), alike))
    assert len(found) == 1


def test_a_plan_with_stages_in_words() -> None:
    model, cluster = chain(4, tied=[(0, 3)]), nodes(1, 1)
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
    text = describe_plan(lower(divided_strategy(model, stages, 4), model, cluster), cluster)
    assert "2 stages of layers, 4 microbatches a step" in text
    assert "forward stage 0, 4 microbatches" in text
    assert "activations" in text
    assert "their gradients" in text
    assert "message 0" in text


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_plans_are_deterministic(schedule: PipelineSchedule) -> None:
    model, cluster = chain(6), nodes(1, 1, 1)
    strategy = divided_strategy(model, [ModelStage(before=2 * i, ranks=(i,)) for i in range(3)], 12, schedule)
    assert lower(strategy, model, cluster) == lower(strategy, model, cluster)
