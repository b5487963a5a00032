"""The presets of pipelines: their stages and microbatches are those of their rules."""

from dataclasses import replace

import pytest

from autosync.errors import DoesNotApplyError, InputError
from autosync.strategy import legality
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.pipelines import PIPELINES
from autosync.testing.presets import check_preset
from tests.helpers.staged_models import chain, nodes

MODEL, CLUSTER = chain(6, batch_size=8), nodes(1, 1, 1)


def test_gpipe_gives_each_rank_a_stage_and_four_microbatches_a_stage() -> None:
    found = check_preset("gpipe", MODEL, CLUSTER)
    assert [(one.before, one.ranks) for one in found.stages] == [(0, (0,)), (2, (1,)), (4, (2,))]
    assert (found.microbatches, found.schedule, found.slack) == (12, "gpipe", 0)
    assert check_preset("gpipe", MODEL, CLUSTER, microbatches=6).microbatches == 6
    # No more than the batch has.
    assert check_preset("gpipe", chain(6, batch_size=2), CLUSTER).microbatches == 6
    with pytest.raises(InputError, match="divide the global batch"):
        build_preset("gpipe", MODEL, CLUSTER, microbatches=5)


def test_interleaving_deals_short_stages_to_the_ranks_in_turn() -> None:
    found = check_preset("interleaved_1f1b", MODEL, CLUSTER)
    assert [(one.before, one.ranks) for one in found.stages] == [(n, (n % 3,)) for n in range(6)]
    assert (found.microbatches, found.schedule, found.slack) == (12, "interleaved", 0)
    assert check_preset("interleaved_1f1b", MODEL, CLUSTER, microbatches=6).microbatches == 6
    assert len(check_preset("interleaved_1f1b", chain(9), CLUSTER, stages_per_rank=3).stages) == 9
    with pytest.raises(InputError, match="groups of 3"):
        build_preset("interleaved_1f1b", MODEL, CLUSTER, microbatches=8)
    with pytest.raises(DoesNotApplyError, match="6 layers that can be stages"):
        build_preset("interleaved_1f1b", MODEL, CLUSTER, stages_per_rank=3)


def test_pipedream_chooses_stages_and_makes_passes_in_turn() -> None:
    found = check_preset("pipedream_flush", MODEL, CLUSTER)
    assert len(found.stages) > 1
    assert (found.schedule, found.slack) == ("1f1b", 0)
    assert sorted({rank for one in found.stages for rank in one.ranks}) == [0, 1, 2]


def test_without_a_flush_each_rank_has_one_stage_and_enough_microbatches() -> None:
    found = check_preset("pipedream_2bw", MODEL, CLUSTER)
    assert (found.schedule, found.slack, found.classes) == ("2bw", 0, {"stale"})
    assert sorted(rank for one in found.stages for rank in one.ranks) == [0, 1, 2]
    assert found.microbatches >= 3
    few = replace(found, microbatches=2)
    assert any("under way" in str(one) for one in legality.problems(few, MODEL, CLUSTER))
    around = replace(found, stages=(*found.stages, replace(found.stages[0], before=5)))
    assert any("several stages" in str(one) for one in legality.problems(around, MODEL, CLUSTER))


def test_pipedream_passes_whole_batches_and_stashes_parameters() -> None:
    found = check_preset("pipedream", MODEL, CLUSTER)
    assert (found.schedule, found.slack, found.classes) == ("stashing", 0, {"stale"})
    assert sorted(rank for one in found.stages for rank in one.ranks) == [0, 1, 2]
    # As few microbatches as the widest stages have ranks.
    assert found.microbatches == max(len(one.ranks) for one in found.stages)
    assert check_preset("pipedream", MODEL, CLUSTER, microbatches=12).microbatches == 12
    with pytest.raises(InputError, match="divide the global batch"):
        build_preset("pipedream", MODEL, CLUSTER, microbatches=5)
    with pytest.raises(DoesNotApplyError, match="w0 in the stages"):
        build_preset("pipedream", chain(6, batch_size=8, tied=[(0, 5)]), CLUSTER)
    with pytest.raises(DoesNotApplyError, match="a task that clips"):
        build_preset("pipedream", replace(MODEL, clip_norm=1.0), CLUSTER)


@pytest.mark.parametrize("preset", PIPELINES)
def test_what_cannot_be_divided_says_why(preset: str) -> None:
    with pytest.raises(DoesNotApplyError, match="has no cuts"):
        build_preset(preset, replace(MODEL, timeline=replace(MODEL.timeline, cuts=())), CLUSTER)
    with pytest.raises(DoesNotApplyError, match="scales its loss"):
        build_preset(preset, replace(MODEL, loss_scaling=True), CLUSTER)


def test_gpipe_needs_a_layer_for_each_rank() -> None:
    with pytest.raises(DoesNotApplyError, match="2 layers that can be stages"):
        build_preset("gpipe", chain(2), CLUSTER)
