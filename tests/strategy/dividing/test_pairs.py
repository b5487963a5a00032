"""Divisions into two stages, at every cut."""

from dataclasses import replace

import pytest

from autosync.specs.model_file import load_model
from autosync.strategy import legality
from autosync.strategy.dividing.pairs import MOST_CUTS, pair_divisions
from tests.helpers.staged_models import chain, nodes


@pytest.mark.parametrize(("num_ranks", "widths"), [(2, {1}), (3, {1, 2}), (6, {1, 3, 5})])
def test_the_first_stage_has_one_rank_or_half_or_all_but_one(num_ranks: int, widths: set[int]) -> None:
    model, cluster = chain(5, batch_size=8), nodes(*[1] * num_ranks)
    found = pair_divisions(model, cluster)
    assert {len(one.stages) for one in found} == {2}
    assert {len(one.stages[0].ranks) for one in found} == widths
    assert {one.stages[1].before for one in found} == {1, 2, 3, 4}
    assert all(not legality.problems(one, model, cluster) for one in found)
    for one in found:
        assert sorted(rank for stage in one.stages for rank in stage.ranks) == list(range(num_ranks))


def test_one_rank_alone_has_no_pairs() -> None:
    assert pair_divisions(chain(5), nodes(1)) == []


def test_a_model_without_cuts_has_no_pairs() -> None:
    model = chain(5)
    whole = replace(model, timeline=replace(model.timeline, cuts=()))
    assert pair_divisions(whole, nodes(1, 1)) == []


def test_of_many_cuts_some_are_taken_all_over_the_model() -> None:
    model = load_model("lstm_ptb")
    cuts = [cut.before for cut in model.timeline.cuts]
    assert len(cuts) > MOST_CUTS
    places = [cuts.index(one) for one in sorted({one.stages[1].before for one in pair_divisions(model, nodes(1, 1))})]
    assert len(places) == MOST_CUTS
    gaps = [later - earlier for earlier, later in zip([-1, *places], [*places, len(cuts)], strict=True)]
    assert max(gaps) <= 2
