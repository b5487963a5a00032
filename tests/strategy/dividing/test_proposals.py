"""The partitioner's proposals: several, all legal, with two stages or more, and within memory."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from autosync.errors import InputError
from autosync.plan.lowering import lower
from autosync.search.node_memory import NodeMemory
from autosync.specs.model import ModelSpec
from autosync.specs.untrained import Untrained
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.dividing.divide import divide
from autosync.strategy.dividing.model_problem import UnderWay, problem_of, strategy_of
from autosync.strategy.dividing.partitioner import partition
from autosync.strategy.dividing.proposals import narrow_divisions, proposed_divisions
from autosync.strategy.dividing.regrouping import regrouped
from autosync.strategy.dividing.timed import timed
from autosync.strategy.dividing.wrapped import wrapped
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.strategy.stage_words import stages_in_words
from autosync.strategy.stages import UNFLUSHED, ModelStage, PipelineSchedule
from tests.helpers.probed_clusters import with_probed_rates
from tests.helpers.staged_models import chain, nodes

MODEL, CLUSTER = chain(6, batch_size=8, tied=[(0, 5)]), nodes(1, 1, 2)


def test_proposals_differ_and_are_legal() -> None:
    found = proposed_divisions(MODEL, CLUSTER, most=8)
    assert len(found) == 8
    assert all(len(one.stages) > 1 and not legality.problems(one, MODEL, CLUSTER) for one in found)
    assert len({strategy_id(one, MODEL, CLUSTER) for one in found}) >= 6
    assert {one.schedule for one in found} == {"1f1b", "gpipe", "zero_bubble"}
    assert len({one.microbatches for one in found}) > 2
    best = divide(MODEL, CLUSTER)
    if len(best.stages) > 1:
        assert best.stages == found[0].stages


def test_narrow_divisions_have_more_stages_with_fewer_ranks() -> None:
    # Compute of one layer is so little that the fastest division leaves nearly all ranks in one stage.
    model, cluster = chain(8, batch_size=8, seconds=[1e-9, *[1.0] * 7]), nodes(1, 1, 1, 1, 1, 1)
    found = narrow_divisions(model, cluster, [8, 24])
    assert all(not legality.problems(one, model, cluster) for one in found)
    assert {one.microbatches for one in found} <= {8, 24}
    assert Counter(one.schedule for one in found) == {"1f1b": 3, "zero_bubble": 3}
    widest = [max(len(stage.ranks) for stage in one.stages) for one in found]
    assert all(width <= most for width, most in zip(widest, (3, 3, 2, 2, 1, 1), strict=True))
    # Two ranks have no other limit than one rank for each stage.
    assert {len(one.stages) for one in narrow_divisions(model, nodes(1, 1), [4])} == {2}


def test_narrow_divisions_compute_activations_again_where_memory_is_small() -> None:
    held = tuple(replace(cut, held_bytes=40_000) for cut in MODEL.timeline.cuts)
    model = replace(MODEL, timeline=replace(MODEL.timeline, cuts=held))
    scarce = tuple(replace(node, memory_bytes=25_000 * node.devices) for node in CLUSTER.nodes)
    found = narrow_divisions(model, replace(CLUSTER, nodes=scarce), [8, 16])
    assert found
    assert all(one.recompute for one in found)


def test_proposals_fit_into_memory_or_there_are_none() -> None:
    small = tuple(replace(node, memory_bytes=MODEL.num_bytes * 4 * node.devices) for node in CLUSTER.nodes)
    roomy = replace(CLUSTER, nodes=small)
    found = proposed_divisions(MODEL, roomy, most=4)
    assert any(NodeMemory(MODEL, roomy).fits(lower(one, MODEL, roomy)) for one in found)
    tiny = replace(CLUSTER, nodes=tuple(replace(node, memory_bytes=10) for node in CLUSTER.nodes))
    assert proposed_divisions(MODEL, tiny, most=4) == []


def test_activations_are_computed_again_where_memory_is_too_small_to_keep_them() -> None:
    held = tuple(replace(cut, held_bytes=40_000) for cut in MODEL.timeline.cuts)
    model = replace(MODEL, timeline=replace(MODEL.timeline, cuts=held))

    def proposed(memory_bytes: int) -> set[bool]:
        nodes = tuple(replace(node, memory_bytes=memory_bytes * node.devices) for node in CLUSTER.nodes)
        return {one.recompute for one in proposed_divisions(model, replace(CLUSTER, nodes=nodes), most=4)}

    assert proposed(10**9) == {False}
    # The first layer holds 5000 bytes of a microbatch, and its backward pass as much for a while. Its stage keeps two
    # microbatches or more, or else the one that it works on.
    assert proposed(15_000) == {True}


def test_divisions_fit_by_the_count_of_their_plans() -> None:
    """With as much memory as may be, what the partitioner takes for small enough is so when its plan is counted."""
    seen = Counter[str]()
    for seed in range(700):
        rng = random.Random(seed)
        num_layers = rng.randint(4, 7)
        tied = rng.choice([[], [(0, num_layers - 1)], [(1, num_layers - 1)], [(0, 2)]])
        seconds = [rng.choice((0.1, 1.0)) for _ in range(num_layers)]
        held = [rng.choice((10, 40, 160)) for _ in range(num_layers - 1)]
        model = _with_cuts(chain(num_layers, batch_size=4, tied=tied, seconds=seconds), held, tied)
        splits = rng.random() < 0.3
        way = UnderWay(rng.choice((0, 2)), not splits and rng.random() < 0.3, splits)
        if not tied and rng.random() < 0.5:
            way = UnderWay(rng.choice((0, 2)), unflushed=rng.choice(UNFLUSHED))
        bare = nodes(*rng.choice([(1, 1, 1), (1, 1, 1, 1), (1, 1, 2)]))
        size = rng.randint(3 * model.num_bytes, 5 * model.num_bytes + 6 * sum(held))
        cluster = replace(bare, nodes=tuple(replace(node, memory_bytes=size * node.devices) for node in bare.nodes))
        problem = problem_of(model, cluster, bare.num_workers * 4, way)
        assert problem is not None
        straight = partition(replace(problem, most_hosts=bare.num_workers - 1))
        for kind, found in (("straight", straight), ("around", wrapped(problem))):
            if found is None:
                seen["none"] += 1
                continue
            schedule: PipelineSchedule = way.unflushed or ("zero_bubble" if splits else "1f1b")
            strategy = strategy_of(found, problem, model, schedule)
            plan = lower(timed(strategy, model, cluster), model, cluster)
            assert NodeMemory(model, cluster).fits(plan), (seed, kind)
            seen[kind] += 1
            seen[schedule] += 1
    assert min(seen[kind] for kind in ("straight", "around", "none", "2bw", "stashing")) > 20, f"{seen}"


def _with_cuts(model: ModelSpec, held: list[int], tied: list[tuple[int, int]]) -> ModelSpec:
    """The chain with cuts that know these weights of two layers, and what the layer before keeps of an example."""
    until = itertools.accumulate(one * model.batch_size for one in held)
    cuts = tuple(
        replace(
            cut,
            held_bytes=num_bytes,
            tied=tuple(f"w{first}" for first, second in tied if first < cut.before <= second),
        )
        for cut, num_bytes in zip(model.timeline.cuts, until, strict=True)
    )
    return replace(model, timeline=replace(model.timeline, cuts=cuts))


def test_messages_follow_the_ranks_that_hold_their_parts() -> None:
    first = proposed_divisions(MODEL, CLUSTER, most=1)[0]
    stages = (ModelStage(before=0, ranks=(0, 1)), ModelStage(before=3, ranks=(2, 3)))
    moved = regrouped(replace(first, stages=stages, microbatches=8), MODEL)
    assert not legality.problems(moved, MODEL, CLUSTER)
    # The tied weight is on all ranks, and the others on those of one stage.
    assert len(moved.messages) == 3


def test_compute_is_that_of_the_busiest_rank() -> None:
    stages = (ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1, 2, 3)))
    strategy = regrouped(replace(proposed_divisions(MODEL, CLUSTER, most=1)[0], stages=stages, microbatches=8), MODEL)
    # A layer takes three seconds for eight examples. Rank 0 passes all 32 through two, another rank a third or more
    # through four.
    assert strategy_compute_seconds(strategy, MODEL, CLUSTER) == pytest.approx(2 * 3 * 4)
    assert strategy_compute_seconds(None, MODEL, CLUSTER) == pytest.approx(MODEL.step_seconds)


def test_words_name_layers_and_ranks() -> None:
    stages = (ModelStage(before=0, ranks=(0,)), ModelStage(before=5, ranks=(1, 2, 3)))
    assert stages_in_words(stages, MODEL, CLUSTER) == [
        "stage 0 (168 B), m0 to m4: rank 0 (n0)",
        "stage 1 (24 B), m5: ranks 1, 2, 3 (n1, n2)",
    ]


def test_without_a_flush_the_fastest_legal_division_is_taken() -> None:
    """A large weight is tied, and links are slow: the fastest has the first and the last stage on one rank."""
    chained = chain(6, batch_size=8, tied=[(0, 5)], seconds=[0.1, 1, 1, 1, 1, 0.9], sizes=[1] * 5)
    large = replace(chained.variable("w0"), shape=(3000, 3))
    model = replace(chained, variables=tuple(large if one.name == "w0" else one for one in chained.variables))
    model = _with_cuts(model, [0] * 5, [(0, 5)])
    hosts = nodes(1, 1, 1, 1, 1)
    slow = tuple(replace(node, bandwidth_out=1e4, bandwidth_in=1e4) for node in hosts.nodes)
    cluster = replace(hosts, nodes=slow)
    assert divide(model, cluster).stages[0].ranks == divide(model, cluster).stages[-1].ranks
    for slack in (0, 4):
        found = divide(model, cluster, schedule="2bw", slack=slack)
        assert not legality.problems(found, model, cluster)
        assert found.schedule == "2bw"
    with pytest.raises(InputError, match="w0 in the stages"):
        divide(model, cluster, schedule="stashing", slack=0)
    assert len(divide(chain(6, batch_size=8), cluster, schedule="stashing", slack=0).stages) > 1


def test_hosts_have_their_probed_rates_and_those_that_differ_little_count_as_equal() -> None:
    cluster = with_probed_rates(nodes(1, 1, 1, 2), rate_out=[97e4, 99e4, 98e4, 50e4], rate_in=[99e4, 97e4, 98e4, 101e4])
    problem = problem_of(MODEL, cluster, 8)
    assert problem is not None
    fast, *others = problem.hosts
    assert (fast.rate_out, fast.rate_in) == pytest.approx((98e4, 98.5e4))
    assert others[:2] == [fast, fast]
    # The ranks of a node share its interface.
    assert [host.rate_out for host in others[2:]] == [25e4, 25e4]


def test_a_frozen_parameter_on_both_sides_of_a_cut_is_no_tied_weight() -> None:
    cuts = tuple(replace(cut, tied=("w0", "frozen")) for cut in MODEL.timeline.cuts)
    frozen = Untrained(name="frozen", shape=(4, 8), reason="frozen")
    model = replace(MODEL, untrained=(frozen,), timeline=replace(MODEL.timeline, cuts=cuts))
    problem = problem_of(model, CLUSTER, 8)
    assert problem is not None
    assert len(problem.tied) == 1
    assert divide(model, CLUSTER).stages


def test_parameters_that_are_not_trained_take_memory() -> None:
    frozen = (
        Untrained(name="frozen", shape=(4, 8), dtype="float64", reason="frozen"),
        Untrained(name="quantised", shape=(10,), dtype="int8", reason="frozen"),
    )
    with_frozen, without = (problem_of(model, CLUSTER, 8) for model in (replace(MODEL, untrained=frozen), MODEL))
    assert with_frozen is not None
    assert without is not None
    assert with_frozen.fixed_bytes == without.fixed_bytes + 4 * 8 * 8 + 10 * 4


def test_without_a_flush_copies_of_parameters_take_memory() -> None:
    model, cluster = chain(6, batch_size=8), nodes(1, 1, 1)

    def copies(schedule: PipelineSchedule | None, microbatches: int, slack: int = 0) -> list[int]:
        problem = problem_of(model, cluster, microbatches, UnderWay(slack, unflushed=schedule))
        assert problem is not None
        return [problem.num_copies(1, num_behind) for num_behind in (2, 1, 0)]

    assert copies(None, 1) == [0, 0, 0]
    # As ranks keep them: two of parameters, and one of gradients.
    assert copies("2bw", 6) == [3, 3, 3]
    assert copies("stashing", 6) == [2, 2, 0]
    assert copies("stashing", 1) == [3, 2, 0]
    assert copies("stashing", 6, slack=6) == [3, 3, 2]
    # The whole model and two gradients of the first check; or 7/18 of it with a gradient, copies, and two gradients.
    size = int(3.5 * model.num_bytes)
    tight = replace(cluster, nodes=tuple(replace(node, memory_bytes=size) for node in cluster.nodes))
    assert divide(model, tight, slack=0).stages
    with pytest.raises(InputError, match="cannot be divided"):
        divide(model, tight, schedule="2bw", slack=0)
