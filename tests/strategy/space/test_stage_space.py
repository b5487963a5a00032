"""Strategies with stages in a space: drawn, changed and crossed, always legal; without cuts there are none."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.timed import timed
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.stage_changes import (
    StageRoom,
    change_schedule,
    drop_stage,
    join_stages,
    move_rank,
    split_stage,
    swap_ranks,
)
from autosync.strategy.space.stage_space import STAGE_WEIGHTS
from autosync.strategy.stages import ModelStage, holders_of_variables, most_missed
from tests.helpers.staged_models import chain, nodes, random_division

CLUSTER = nodes(1, 1, 2)
MODEL = chain(7, batch_size=6, tied=[(0, 6)])
SPACE = Space(model=MODEL, cluster=CLUSTER)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_changes_and_children_are_legal(seed: int) -> None:
    rng = random.Random(seed)
    first, model, cluster = random_division(rng)
    allow = tuple(one for one in ("stale",) if one in first.classes)
    space = Space(model=model, cluster=cluster, limits=Limits(allow=allow, staleness=(40,)))
    assert space.stages is None or space.contains(first)
    if space.stages is None:
        return
    changed = space.mutate(first, rng)
    second = space.mutate(changed, rng)
    for one in (changed, second, space.crossover(first, second, rng)):
        assert one.stages
        assert not legality.problems(one, model, cluster)
        lower(one, model, cluster)
    assert strategy_id(changed, model, cluster) != strategy_id(first, model, cluster)


def test_samples_have_stages_now_and_then() -> None:
    drawn = [SPACE.sample(random.Random(seed)) for seed in range(60)]
    divided = [one for one in drawn if one.stages]
    assert 2 <= len(divided) < 30
    assert all(SPACE.contains(one) for one in drawn)
    whole = next(one for one in drawn if not one.stages)
    assert SPACE.crossover(whole, divided[0], random.Random(0)).stages


def test_every_aspect_changes_sooner_or_later() -> None:
    assert SPACE.stages is not None
    first = SPACE.stages.proposals[0]
    rng, seen = random.Random(1), set()
    one = first
    for _ in range(300):
        changed = SPACE.mutate(one, rng)
        for aspect in ("stages", "microbatches", "schedule", "slack", "messages"):
            if getattr(changed, aspect) != getattr(one, aspect):
                seen.add(aspect)
        one = changed
    assert seen == {"stages", "microbatches", "schedule", "slack", "messages"}


def test_schedules_without_a_flush_are_tried_where_stale_strategies_are_allowed() -> None:
    stale = Space(model=MODEL, cluster=CLUSTER, limits=Limits(allow=("stale",)))
    for space, expected in ((SPACE, False), (stale, True)):
        assert space.stages is not None
        proposed = {one.schedule for one in space.stages.proposals}
        room, rng = space.stages._stages, random.Random(3)
        one = space.stages.proposals[0]
        changed = [change_schedule(room, one, rng) for _ in range(60)]
        found = proposed | {one.schedule for one in changed if one is not None}
        assert ("2bw" in found) == ("stashing" in found) == expected
    assert stale.stages is not None
    (late,) = (one for one in stale.stages.proposals if one.schedule == "2bw")
    shapes = {variable.name: variable.shape for variable in MODEL.variables}
    assert any("2bw is outside the limits" in str(one) for one in SPACE.limits.problems(late, shapes))
    assert not list(stale.limits.problems(late, shapes))


def test_stages_miss_no_more_updates_than_the_limits_say() -> None:
    model, cluster = chain(7, batch_size=6), nodes(1, 1, 1, 1)
    space = Space(model=model, cluster=cluster, limits=Limits(allow=("stale",), staleness=(1, 2)))
    assert space.stages is not None
    proposed = {one.schedule for one in space.stages.proposals}
    assert {"2bw", "stashing"} <= proposed
    rng, one, missed = random.Random(5), space.stages.proposals[0], set()
    for _ in range(300):
        one = space.mutate(one, rng)
        missed.add(most_missed(one.stages, one.microbatches, one.schedule, one.slack))
    assert missed == {0, 1, 2}
    stages = [ModelStage(before=number, ranks=(number,)) for number in range(4)]
    late = divided_strategy(model, stages, 1, "stashing")
    (problem,) = space.problems(late)
    assert "a stage that misses 3 updates is outside the limits (limits: up to 2)" in str(problem)
    assert Space(model=model, cluster=cluster, limits=Limits(allow=("stale",))).contains(late)


@pytest.mark.parametrize("change", STAGE_WEIGHTS, ids=lambda change: change.__name__)
def test_each_change_makes_legal_children_of_strategies_with_units(
    change: Callable[[StageRoom, Strategy, random.Random], Strategy | None],
) -> None:
    model = chain(9, batch_size=6, tied=[(0, 8)])
    stated = tuple(replace(node, memory_bytes=10**9) for node in nodes(1, 1, 1, 1).nodes)
    cluster = replace(nodes(1, 1, 1, 1), nodes=stated)
    divisions: list[list[tuple[int, ...]]] = [[(0,), (1,), (2,), (3,)], [(0, 1), (2, 3)], [(0,), (1,), (2, 3), (0,)]]
    parents = []
    for ranks in divisions:
        stages = [ModelStage(before=2 * number, ranks=of_stage) for number, of_stage in enumerate(ranks)]
        parents.append(timed(divided_strategy(model, stages, 8, slack=2), model, cluster))
    assert all(stage.units for parent in parents for stage in parent.stages)
    space = Space(model=model, cluster=cluster).stages
    assert space is not None
    rng = random.Random(4)
    children = [change(space._stages, parent, rng) for parent in parents for _ in range(20)]
    assert any(child is not None and not legality.problems(child, model, cluster) for child in children)


def test_ranks_of_one_stage_that_change_places_are_no_change() -> None:
    """Two ranks of the only stage: the strategy without units is not taken for another one."""
    assert SPACE.stages is not None
    parent = timed(divided_strategy(MODEL, [ModelStage(before=0, ranks=(0, 1, 2, 3))], 8), MODEL, CLUSTER)
    swapped = swap_ranks(SPACE.stages._stages, parent, random.Random(0))
    assert swapped is not None
    assert timed(swapped, MODEL, CLUSTER) == replace(parent, messages=swapped.messages)
    rng = random.Random(1)
    before = strategy_id(parent, MODEL, CLUSTER)
    assert all(strategy_id(SPACE.mutate(parent, rng), MODEL, CLUSTER) != before for _ in range(100))


def test_proposals_and_children_have_a_topology_within_the_limits() -> None:
    limits = Limits(topologies=("halving_doubling", "ring"))
    space = Space(model=MODEL, cluster=CLUSTER, limits=limits)
    assert space.stages is not None
    assert space.stages.proposals
    assert all(space.contains(one) for one in space.stages.proposals)
    rng = random.Random(2)
    drawn = [space.stages.sample(rng) for _ in range(40)]
    assert all(one is not None and space.contains(one) for one in drawn)


def test_the_ranks_of_a_message_hold_all_its_parts_after_a_move() -> None:
    assert SPACE.stages is not None
    cuts = tuple(cut.before for cut in MODEL.timeline.cuts)
    room = StageRoom(model=MODEL, cuts=cuts, counts=(4, 8), is_memory_stated=False)
    rng = random.Random(2)
    one = SPACE.stages.proposals[0]
    for change in (split_stage, move_rank, join_stages, drop_stage) * 20:
        changed = change(room, one, rng)
        if changed is None or legality.problems(changed, MODEL, CLUSTER):
            continue
        holders = holders_of_variables(changed.stages, MODEL)
        for message in changed.messages:
            assert len({holders[part] for part in message.parts}) == 1
        one = changed


def test_activations_are_computed_again_only_where_memory_is_stated() -> None:
    stated = replace(CLUSTER, nodes=tuple(replace(node, memory_bytes=10**9) for node in CLUSTER.nodes))
    for cluster, expected in ((CLUSTER, {False}), (stated, {False, True})):
        space = Space(model=MODEL, cluster=cluster)
        assert space.stages is not None
        rng = random.Random(1)
        one, seen = space.stages.proposals[0], set()
        for _ in range(200):
            one = space.stages.mutate(one, rng)
            seen.add(one.recompute)
        assert seen == expected


@pytest.mark.parametrize(
    ("model", "limits", "reason"),
    [
        (replace(MODEL, timeline=replace(MODEL.timeline, cuts=())), Limits(), "has no cuts"),
        (replace(MODEL, loss_scaling=True), Limits(), "scales its loss"),
        (MODEL, Limits(stages=False), "the limits leave out stages"),
        (MODEL, Limits(overlaps=("forward",)), "the limits leave out overlap backward"),
        (MODEL, Limits(synchronisers=("all_reduce", "parameter_server"), topologies=("levels",)), "all topologies"),
    ],
)
def test_where_there_are_none(model: ModelSpec, limits: Limits, reason: str) -> None:
    space = Space(model=model, cluster=CLUSTER, limits=limits)
    assert reason in space.why_undivided
    assert space.stages is None
    assert not any(space.sample(random.Random(seed)).stages for seed in range(20))


def test_a_space_with_stages_is_larger() -> None:
    without = Space(model=MODEL, cluster=CLUSTER, limits=Limits(stages=False))
    assert SPACE.stages is not None
    # Two or more of seven layers on four ranks, in twelve numbers of microbatches and two orders.
    assert SPACE.stages.log10_size() > 3
    assert SPACE.log10_size() >= without.log10_size()
    outside = SPACE.stages.proposals[0]
    assert "stages is outside the limits" in str(without.problems(outside)[0])
