"""The partitioner's proposals: several, all legal, with two stages or more, and within memory."""

from dataclasses import replace

import pytest

from autosync.plan.lowering import lower
from autosync.search.node_memory import NodeMemory
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.dividing.divide import divide, proposed_divisions
from autosync.strategy.dividing.regrouping import regrouped
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.strategy.stage_words import stages_in_words
from autosync.strategy.stages import ModelStage
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


def test_proposals_fit_into_memory_or_there_are_none() -> None:
    small = tuple(replace(node, memory_bytes=MODEL.num_bytes * 3 * node.devices) for node in CLUSTER.nodes)
    roomy = replace(CLUSTER, nodes=small)
    found = proposed_divisions(MODEL, roomy, most=4)
    assert any(NodeMemory(MODEL, roomy).fits(lower(one, MODEL, roomy)) for one in found)
    tiny = replace(CLUSTER, nodes=tuple(replace(node, memory_bytes=10) for node in CLUSTER.nodes))
    assert proposed_divisions(MODEL, tiny, most=4) == []


def test_activations_are_computed_again_where_memory_is_too_small_to_keep_them() -> None:
    held = tuple(replace(cut, held_bytes=40_000 * cut.before) for cut in MODEL.timeline.cuts)
    model = replace(MODEL, timeline=replace(MODEL.timeline, cuts=held))

    def proposed(memory_bytes: int) -> set[bool]:
        nodes = tuple(replace(node, memory_bytes=memory_bytes * node.devices) for node in CLUSTER.nodes)
        return {one.recompute for one in proposed_divisions(model, replace(CLUSTER, nodes=nodes), most=4)}

    assert proposed(10**9) == {False}
    # The first of four stages keeps four microbatches of a layer, of 5000 bytes each, or works on one of two layers.
    assert proposed(15_000) == {True}


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
