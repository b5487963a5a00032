"""Candidates: the presets that apply, each once, and the strategies of records."""

from collections.abc import Callable

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP, candidate_of, default_as_strategy, known_candidates
from autosync.search.domain import SpaceDomain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.space import Space


def test_the_known_ones_are_presets_that_may_be_tried_each_once(model: ModelSpec, cluster: ClusterSpec) -> None:
    domain = SpaceDomain(space=Space(model=model, cluster=cluster))
    known = list(known_candidates(model, cluster, domain.contains))
    assert known[0].origin == "preset:ddp"
    assert len(known) > 4
    assert len({one.strategy_id for one in known}) == len(known)
    for one in known:
        assert one.origin.startswith("preset:")
        assert one.strategy is not None
        assert one.strategy.is_exact
        assert domain.contains(one.strategy)
        assert one.strategy_id == strategy_id(one.strategy, model, cluster)


def test_a_record_is_of_its_candidate(
    model: ModelSpec, cluster: ClusterSpec, make_record: Callable[..., Record]
) -> None:
    for one in (STOCK_DDP, default_as_strategy(model, cluster)):
        assert candidate_of(make_record(0, one, 0.5)) == one


def test_the_default_is_the_preset_of_stock_ddp(model: ModelSpec, cluster: ClusterSpec) -> None:
    default = default_as_strategy(model, cluster)
    assert default.origin == "preset:ddp"
    assert default.name == f"preset:ddp {default.strategy_id[:8]}"
    assert STOCK_DDP.name == "stock DDP"
