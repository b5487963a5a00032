"""Real ranks that compute stages of a model train as one process does on the global batch."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule

# Task, segments before which stages begin, their ranks, microbatches, schedule.
Division = tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...], int, str]

ON_TWO: list[Division] = [
    ("convolutions", (0, 2), ((0,), (1,)), 4, "1f1b"),
    ("tied_text", (0, 3, 8), ((0,), (1,), (0,)), 8, "1f1b"),
    ("far_skip", (0, 2), ((0,), (1,)), 2, "gpipe"),
    ("tables", (0,), ((0, 1),), 4, "1f1b"),
    ("tied_text", (0, 3, 8), ((0,), (1,), (0,)), 4, "zero_bubble"),
    ("clipped_text", (0, 3, 8), ((0,), (1,), (0,)), 4, "1f1b"),
    ("sparse_tables", (0, 3), ((1,), (0,)), 4, "1f1b"),
    ("clipped_tables", (0, 2, 3), ((0,), (1,), (0,)), 4, "1f1b"),
    ("partly_updated", (0, 2), ((0,), (1,)), 2, "gpipe"),
]
MORE_ON_TWO: list[Division] = [
    ("convolutions", (0, 1), ((1,), (0,)), 8, "gpipe"),
    ("tied_text", (0, 5), ((0,), (1,)), 4, "1f1b"),
    ("tables", (0, 3), ((1,), (0,)), 8, "1f1b"),
    ("tied_text", (0, 3, 5, 8), ((0,), (1,), (0,), (1,)), 8, "interleaved"),
    ("convolutions", (0, 1, 2, 3), ((1,), (0,), (1,), (0,)), 4, "interleaved"),
    ("tied_text", (0, 5), ((0,), (1,)), 8, "zero_bubble"),
    ("tables", (0, 3), ((1,), (0,)), 8, "zero_bubble"),
    ("clipped_text", (0, 5), ((0,), (1,)), 8, "zero_bubble"),
    ("sparse_tables", (0,), ((0, 1),), 4, "gpipe"),
]
ON_THREE: list[Division] = [
    ("convolutions", (0, 1, 3), ((0,), (1,), (2,)), 6, "1f1b"),
    ("tied_text", (0, 3, 6), ((2,), (0,), (1,)), 12, "1f1b"),
    ("tied_text", (0, 4), ((0, 2), (1,)), 4, "1f1b"),
    ("tied_text", (0, 4), ((1,), (0, 2)), 6, "gpipe"),
    ("far_skip", (0, 1, 4), ((0,), (1,), (2,)), 12, "1f1b"),
    ("tables", (0, 2), ((0,), (1, 2)), 3, "1f1b"),
    ("tied_text", (0, 4), ((0, 2), (1,)), 6, "zero_bubble"),
    ("clipped_text", (0, 4), ((0, 2), (1,)), 6, "1f1b"),
    ("sparse_tables", (0, 2), ((0, 2), (1,)), 6, "zero_bubble"),
]


UNFLUSHED_ON_THREE: list[Division] = [
    ("convolutions", (0, 1, 3), ((0,), (1,), (2,)), 6, "2bw"),
    ("tied_text", (0, 3, 6), ((2,), (0,), (1,)), 12, "2bw"),
    ("tied_text", (0, 4), ((0, 2), (1,)), 4, "2bw"),
    ("far_skip", (0, 1, 4), ((0,), (1,), (2,)), 3, "2bw"),
    ("clipped_text", (0, 4), ((1,), (0, 2)), 6, "2bw"),
    ("sparse_tables", (0, 2), ((0, 2), (1,)), 12, "2bw"),
    ("tables", (0,), ((0, 1, 2),), 6, "2bw"),
    ("added_parameters", (0,), ((0, 1, 2),), 6, "2bw"),
]


# Without a flush, each stage by itself; fewer microbatches than stages, or one, are under way over several steps.
STASHING_ON_THREE: list[Division] = [
    ("convolutions", (0, 1, 3), ((0,), (1,), (2,)), 6, "stashing"),
    ("convolutions", (0, 1, 3), ((2,), (0,), (1,)), 1, "stashing"),
    ("far_skip", (0, 1, 4), ((0,), (1,), (2,)), 2, "stashing"),
    ("tables", (0, 2), ((0, 2), (1,)), 6, "stashing"),
    ("tables", (0, 3), ((1,), (0, 2)), 2, "stashing"),
    ("sparse_tables", (0, 2), ((0, 2), (1,)), 12, "stashing"),
    ("added_parameters", (0, 1), ((0, 2), (1,)), 6, "stashing"),
]


def _trained(ranks: Any, divisions: list[Division], *, recompute: bool = False) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("stage_cases:trained", {"name": one[0], "bundle": ranks.staged_bundle(*one, recompute=recompute)})
        for one in divisions
    ]


@pytest.mark.timeout(200)
def test_two_ranks_train_as_one_process_does(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    cases = _trained(ranks, ON_TWO)
    skips = {"name": "far_skip", "bundle": ranks.staged_bundle(*ON_TWO[2])}
    hooked = {"name": "hooked", "bundle": ranks.staged_bundle("hooked", (0, 2), ((0,), (1,)), 2)}
    normalised = {"name": "normalised", "bundle": ranks.staged_bundle("normalised", (0, 2), ((0,), (1,)), 2)}
    undivided = {"name": "tables", "bundle": ranks.undivided_bundle("ddp", "tables")}
    masked = {"name": "masked", "bundle": ranks.staged_bundle("masked", (0, 1), ((0,), (1,)), 4)}
    cases += [
        ("stage_cases:refused", skips),
        ("stage_cases:own_batches", skips),
        ("stage_cases:begun", hooked),
        ("stage_cases:hooked_later", skips),
        ("stage_cases:evaluated_later", skips),
        ("stage_cases:forks", skips),
        ("stage_cases:first_step", normalised),
        ("stage_cases:own_batches_later", skips),
        ("stage_cases:own_batches_later", undivided),
        ("stage_cases:begun_otherwise", skips),
        ("stage_cases:begun_otherwise", undivided),
        ("stage_cases:part_of_one", skips),
        ("stage_cases:replaced_before", skips),
        ("stage_cases:masked_later", masked),
    ]
    for answers in ranks.run(cases):
        assert answers[: len(ON_TWO)] == [""] * len(ON_TWO)
        refused, own, begun, afterwards, evaluated, forked, first, *rest = answers[len(ON_TWO) :]
        later, otherwise, (part, replaced, masks) = rest[:2], rest[2:4], rest[4:]
        assert "autosync.trainer(task, bundle)" in refused["parallelize"]
        assert "a step trains on the global batch of 8" in refused["part"]
        assert "each rank gives step() the whole global batch" in own
        assert "last.weight has a hook on its gradient" in begun
        assert "has a hook on its gradient" in afterwards
        assert "training of the model is False, and was True in the first step" in evaluated
        assert forked == ""
        assert "BatchNorm" in first
        for told in later:
            assert "rank 1 trained this step on another batch than rank 0" in told
        for told in otherwise:
            assert "the task's clip_norm is 0.5; the bundle was made for a task whose clip_norm is None" in told
        assert "a batch of 1 examples; a step trains on the global batch of 8" in part
        assert "is another tensor than when the trainer was made" in replaced
        # Steps 2 and 3 are checked.
        assert "in step 3, the gradient of" in masks["told"]
        assert masks["num_steps"] == 2


@pytest.mark.timeout(200)
def test_two_ranks_have_equal_values_of_what_no_rank_trains(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    divisions: list[Division] = [
        ("taught", (0, 2), ((0,), (1,)), 4, "1f1b"),
        ("lazy", (0, 1), ((1,), (0,)), 4, "1f1b"),
        ("followed", (0, 7), ((0,), (1,)), 4, "1f1b"),
        ("taught", (0, 2), ((0,), (1,)), 4, "2bw"),
    ]
    cases = _trained(ranks, divisions)
    target = {"name": "followed", "bundle": ranks.staged_bundle(*divisions[2])}
    late = {"name": "followed", "bundle": ranks.staged_bundle("followed", (0, 7), ((0,), (1,)), 4, "2bw")}
    ways = ("gathered", "in place", "rebound", "hidden")
    moved = [("stage_cases:moves_target", {**target, "how": how}) for how in ways]
    moved.append(("stage_cases:moves_target", {**late, "how": "in place"}))
    hooked = {"name": "hooked_step", "bundle": ranks.staged_bundle("hooked_step", (0, 2), ((0,), (1,)), 2)}
    skips = {"name": "far_skip", "bundle": ranks.staged_bundle(*ON_TWO[2])}
    hooks = [("stage_cases:begun", hooked), ("stage_cases:hooked_step_later", skips)]
    for answers in ranks.run([*cases, *moved, *hooks]):
        assert answers[: len(cases)] == [""] * len(cases)
        gathered, *others, before, after = answers[len(cases) :]
        assert gathered == "nothing raised"
        assert len(others) == 4
        for told in others:
            assert "differs from rank to rank" in told
            assert "trainer.state_dict() on all ranks first" in told
        assert "the optimizer has a hook before its step" in before
        assert "the optimizer has a hook after its step" in after


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_train_under_more_divisions(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    for answers in ranks.run(_trained(ranks, MORE_ON_TWO)):
        assert answers == [""] * len(MORE_ON_TWO)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_train_alike_with_activations_that_are_computed_again(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    divisions = [one for one in (*ON_TWO, *MORE_ON_TWO) if one[-1] != "zero_bubble"]
    for answers in ranks.run(_trained(ranks, divisions, recompute=True)):
        assert answers == [""] * len(divisions)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_three_ranks_train_as_one_process_does(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("unequal")
    for answers in ranks.run(_trained(ranks, ON_THREE)):
        assert answers == [""] * len(ON_THREE)


@pytest.mark.timeout(200)
def test_without_a_flush_gradients_are_one_step_late(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("unequal")
    changed = [
        ("stage_cases:changed", {"name": one[0], "bundle": ranks.staged_bundle(*one)})
        for one in (UNFLUSHED_ON_THREE[3], STASHING_ON_THREE[2])
    ]
    for answers in ranks.run([*_trained(ranks, UNFLUSHED_ON_THREE), *changed]):
        assert answers[: len(UNFLUSHED_ON_THREE)] == [""] * len(UNFLUSHED_ON_THREE)
        for answer in answers[len(UNFLUSHED_ON_THREE) :]:
            assert answer["num_steps"] == 1
            assert "was changed between two steps" in answer["told"]
            assert "states are loaded before the first step" in answer["told"]


@pytest.mark.timeout(200)
def test_stages_that_stash_parameters_train_by_the_rule_of_pipedream(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("unequal")
    for answers in ranks.run(_trained(ranks, STASHING_ON_THREE)):
        assert answers == [""] * len(STASHING_ON_THREE)


@pytest.mark.timeout(200)
def test_four_stages_stash_parameters_of_up_to_four_versions(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("two nodes")
    divisions: list[Division] = [
        ("far_skip", (0, 1, 2, 3), ((0,), (1,), (2,), (3,)), microbatches, "stashing") for microbatches in (1, 2, 8)
    ]
    cases = [*_trained(ranks, divisions), *_trained(ranks, divisions[:1], recompute=True)]
    for answers in ranks.run(cases):
        assert answers == [""] * len(cases)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_trainer_takes_data_parallel_bundles_too(make_ranks: Callable[[str], Any]) -> None:
    ranks = make_ranks("one node")
    cases = [
        ("stage_cases:trained", {"name": name, "bundle": ranks.undivided_bundle(preset, name)})
        for preset, name in (("ddp", "tied_text"), ("sharded", "tables"), ("bytescheduler", "far_skip"))
    ]
    for answers in ranks.run(cases):
        assert answers == [""] * len(cases)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_by_all_others(make_ranks: Callable[[str], Any], victim: int) -> None:
    ranks = make_ranks("unequal")
    # One launch, because processes take seconds to start: another division trains first.
    trained = _trained(ranks, ON_THREE[1:2])
    bundle = ranks.staged_bundle("far_skip", (0, 1, 4), ((0,), (1,), (2,)), 6)
    killed = ("stage_cases:killed", {"name": "far_skip", "bundle": bundle, "victim": victim})
    answers = ranks.run([*trained, killed])
    assert [one[0] for one in answers] == [""] * 3
    assert len(answers[victim]) == 1
    for number, answer in enumerate(answers):
        if number != victim:
            assert f"rank {victim} on" in answer[1]["told"]
            assert answer[1]["seconds"] < 30


SCHEDULES: tuple[PipelineSchedule, ...] = ("gpipe", "1f1b", "zero_bubble", "2bw", "stashing")


def _random_division(rng: random.Random, spec: ModelSpec, name: str, cluster: ClusterSpec) -> Division:
    """A legal division over all ranks: some stages have several ranks, and some ranks several stages."""
    cuts = [cut.before for cut in spec.timeline.cuts]
    while True:
        num_ranks = cluster.num_workers
        num_groups = rng.randint(1, min(num_ranks, 4, len(cuts) + 1))
        order = rng.sample(range(num_ranks), num_ranks)
        ends = [*sorted(rng.sample(range(1, num_ranks), num_groups - 1)), num_ranks]
        ranks = [tuple(sorted(order[begin:end])) for begin, end in zip([0, *ends], ends, strict=False)]
        if 1 < num_groups <= len(cuts) and rng.random() < 0.3:
            ranks.append(ranks[0])
        places = (0, *sorted(rng.sample(cuts, len(ranks) - 1)))
        num_examples = spec.batch_size * num_ranks
        microbatches = rng.choice([count for count in range(1, num_examples + 1) if num_examples % count == 0])
        schedule = rng.choice(SCHEDULES)
        stages = [ModelStage(before=before, ranks=of_stage) for before, of_stage in zip(places, ranks, strict=True)]
        if not legality.problems(divided_strategy(spec, stages, microbatches, schedule), spec, cluster):
            return name, places, tuple(ranks), microbatches, schedule


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["one node", "unequal", "two nodes", "five ranks", "six ranks"])
def test_sixty_random_divisions_train_as_one_process_does(
    make_ranks: Callable[[str], Any], staged_spec: Callable[[str], ModelSpec], where: str
) -> None:
    ranks, rng = make_ranks(where), random.Random(where)
    names = ("convolutions", "tied_text", "far_skip", "tables", "sparse_tables", "clipped_text")
    drawn = [rng.choice(names) for _ in range(60)]
    divisions = [_random_division(rng, staged_spec(name), name, ranks.cluster) for name in drawn]
    for answers in ranks.run(_trained(ranks, divisions), limit_seconds=800):
        assert len(answers) == len(divisions)
        assert [pair for pair in zip(divisions, answers, strict=True) if pair[1]] == []
