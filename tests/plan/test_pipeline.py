"""The passes of stages: their order, what is in flight, and the bytes between stages."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.describe import describe_plan
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.pipeline import order_of_passes
from autosync.plan.traffic import expanded_traffic, plan_traffic, transfer_traffic
from autosync.plan.types import Local, Plan, StagePass, Transfer
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule, boundary_cuts, bytes_of_microbatch
from tests.helpers.staged_models import chain, nodes, random_division


def _straight(num_stages: int) -> list[ModelStage]:
    return [ModelStage(before=number, ranks=(number,)) for number in range(num_stages)]


@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    microbatches=st.integers(4, 12),
    schedule=st.sampled_from(("gpipe", "1f1b", "zero_bubble")),
)
def test_every_pass_comes_once_and_after_what_it_needs(
    widths: list[int], microbatches: int, schedule: PipelineSchedule
) -> None:
    first = [sum(widths[:number]) for number in range(len(widths))]
    stages = [
        ModelStage(before=number, ranks=tuple(range(begin, begin + width)))
        for number, (begin, width) in enumerate(zip(first, widths, strict=True))
    ]
    order = order_of_passes(stages, microbatches, schedule)
    keys = [(one.direction, one.stage, one.microbatch) for one in order]
    directions = ("forward", "backward", "weights")[: 3 if schedule == "zero_bubble" else 2]
    assert len(keys) == len(set(keys)) == len(directions) * microbatches * len(stages)
    place = {key: number for number, key in enumerate(keys)}
    for (direction, stage, microbatch), number in place.items():
        if direction == "forward" and stage:
            assert place["forward", stage - 1, microbatch] < number
        if direction == "backward":
            assert place["forward", stage, microbatch] < number
            assert stage == len(stages) - 1 or place["backward", stage + 1, microbatch] < number
        if direction == "weights":
            assert place["backward", stage, microbatch] < number
    for direction in directions:
        for number, stage in enumerate(stages):
            for rank in stage.ranks:
                mine = [m for d, s, m in keys if (d, s) == (direction, number) and stage.rank_of(m) == rank]
                assert mine == sorted(mine)


def test_one_forward_and_one_backward_in_turn() -> None:
    order = order_of_passes(_straight(3), 5, "1f1b")
    first = "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == 0)
    last = "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == 2)
    assert first == "f0f1f2b0f3b1f4b2b3b4"
    assert last == "f0b0f1b1f2b2f3b3f4b4"


def test_gpipe_makes_all_forward_passes_first() -> None:
    order = order_of_passes(_straight(2), 3, "gpipe")
    assert "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == 0) == "f0f1f2b0b1b2"


@given(num_stages=st.integers(1, 6), microbatches=st.integers(1, 20), slack=st.integers(0, 3))
def test_under_1f1b_a_rank_keeps_no_more_microbatches_than_stages_follow(
    num_stages: int, microbatches: int, slack: int
) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "1f1b", slack)
    kept: Counter[int] = Counter()
    for one in order:
        kept[one.stage] += 1 if one.direction == "forward" else -1
        assert kept[one.stage] <= num_stages - one.stage + slack


@given(num_stages=st.integers(1, 5), microbatches=st.integers(1, 16), schedule=st.sampled_from(("gpipe", "1f1b")))
def test_even_stages_wait_only_at_both_ends(num_stages: int, microbatches: int, schedule: PipelineSchedule) -> None:
    last = max(one.begin for one in order_of_passes(_straight(num_stages), microbatches, schedule))
    # Three units a microbatch, and a bubble of three units for each further stage.
    assert last + 2 == 3 * (microbatches + num_stages - 1)


@given(num_stages=st.integers(1, 5), microbatches=st.integers(1, 16))
def test_a_backward_pass_that_computes_activations_again_takes_longer(num_stages: int, microbatches: int) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "1f1b", recompute=True)
    assert max(one.begin for one in order) + 3 == 4 * (microbatches + num_stages - 1)


@given(num_ranks=st.integers(2, 5), per_rank=st.integers(2, 3), groups=st.integers(1, 4), slack=st.integers(0, 6))
def test_interleaved_stages_wait_for_one_short_stage_a_rank(
    num_ranks: int, per_rank: int, groups: int, slack: int
) -> None:
    stages = [ModelStage(before=n, ranks=(n % num_ranks,)) for n in range(num_ranks * per_rank)]
    order = order_of_passes(stages, groups * num_ranks, "interleaved", slack)
    keys = [(one.direction, one.stage, one.microbatch) for one in order]
    assert len(keys) == len(set(keys)) == 2 * len(stages) * groups * num_ranks
    end = max(one.begin + (1 if one.direction == "forward" else 2) for one in order)
    # The bubble has three units of a short stage for each further rank.
    assert end == 3 * (per_rank * groups * num_ranks + num_ranks - 1)
    kept: Counter[int] = Counter()
    for one in order:
        rank = one.stage % num_ranks
        kept[rank] += 1 if one.direction == "forward" else -1
        assert kept[rank] <= 2 * (num_ranks - rank - 1) + (per_rank - 1) * num_ranks + slack + 1


@given(num_stages=st.integers(2, 6), microbatches=st.integers(1, 20), slack=st.integers(0, 3))
def test_gradients_of_weights_fill_bubbles_in_the_memory_of_a_first_stage(
    num_stages: int, microbatches: int, slack: int
) -> None:
    order = order_of_passes(_straight(num_stages), microbatches, "zero_bubble", slack)
    kept: Counter[int] = Counter()
    for one in order:
        kept[one.stage] += {"forward": 1, "backward": 0, "weights": -1}[one.direction]
        assert kept[one.stage] <= num_stages + slack
    # With one unit for each of three passes, the bubble is a third of what it is under 1f1b.
    end = max(one.begin for one in order) + 1
    if microbatches >= num_stages:
        assert end == 3 * microbatches + num_stages - 1
    # No rank waits while it has gradients of weights to compute.
    for stage in range(num_stages):
        mine = [one for one in order if one.stage == stage]
        for before, after in itertools.pairwise(mine):
            left = sum(one.direction == "backward" for one in mine[: mine.index(after)])
            done = sum(one.direction == "weights" for one in mine[: mine.index(after)])
            assert left == done or after.begin == before.begin + 1


def test_a_split_backward_pass_sends_first() -> None:
    order = order_of_passes(_straight(3), 4, "zero_bubble")
    last = "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == 2)
    first = "".join(f"{one.direction[0]}{one.microbatch}" for one in order if one.stage == 0)
    assert first == "f0f1f2b0w0f3b1w1b2w2b3w3"
    assert last == "f0b0f1b1f2b2w0f3b3w1w2w3"


def test_interleaved_passes_go_in_groups() -> None:
    stages = [ModelStage(before=n, ranks=(n % 2,)) for n in range(4)]
    order = order_of_passes(stages, 4, "interleaved")
    last = " ".join(f"{one.direction[0]}{one.stage}:{one.microbatch}" for one in order if one.stage % 2 == 1)
    assert last == ("f1:0 f1:1 f3:0 b3:0 f3:1 b3:1 f1:2 b1:0 f1:3 b1:1 f3:2 b3:2 f3:3 b3:3 b1:2 b1:3")


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
