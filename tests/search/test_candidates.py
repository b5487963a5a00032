"""Which strategies are tried: each once, legal, exact, run by the engine; an end where the space has one."""

import itertools

from autosync.plan.lowering import lower
from autosync.runtime.support import unsupported
from autosync.search.candidates import STOCK_DDP, candidates, default_as_strategy
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id


def test_stock_ddp_then_presets_then_samples(model: ModelSpec, cluster: ClusterSpec) -> None:
    drawn = list(itertools.islice(candidates(model, cluster, 0), 60))
    assert drawn[0] == STOCK_DDP
    origins = [candidate.origin for candidate in drawn]
    assert "preset:ddp" in origins
    first_sample = origins.index("sampled")
    assert set(origins[first_sample:]) == {"sampled"}
    assert all(origin.startswith("preset:") for origin in origins[1:first_sample])
    assert len(drawn) == 60


def test_each_is_new_legal_exact_and_runs(model: ModelSpec, cluster: ClusterSpec) -> None:
    drawn = list(itertools.islice(candidates(model, cluster, 1), 60))
    assert len({candidate.strategy_id for candidate in drawn}) == len(drawn)
    for candidate in drawn[1:]:
        assert candidate.strategy is not None
        assert legality.problems(candidate.strategy, model, cluster) == []
        assert candidate.strategy.is_exact
        assert unsupported(lower(candidate.strategy, model, cluster)) == []
        assert candidate.strategy_id == strategy_id(candidate.strategy, model, cluster)


def test_the_seed_decides(model: ModelSpec, cluster: ClusterSpec) -> None:
    def ids(seed: int) -> list[str]:
        return [candidate.strategy_id for candidate in itertools.islice(candidates(model, cluster, seed), 30)]

    assert ids(4) == ids(4)
    assert ids(4) != ids(5)


def test_a_small_space_comes_to_its_end(scalar: ModelSpec, cluster: ClusterSpec) -> None:
    drawn = list(candidates(scalar, cluster, 0))
    assert 2 <= len(drawn) < 40
    assert len({candidate.strategy_id for candidate in drawn}) == len(drawn)


def test_the_default_is_the_preset_of_stock_ddp(model: ModelSpec, cluster: ClusterSpec) -> None:
    default = default_as_strategy(model, cluster)
    assert default.origin == "preset:ddp"
    assert default.name == f"preset:ddp {default.strategy_id[:8]}"
    assert STOCK_DDP.name == "stock DDP"
