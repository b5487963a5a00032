"""Who is declared the winner: nobody by luck, and nobody without stock DDP beside it."""

import pytest

from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.effort import NORMAL_EFFORT
from autosync.search.guarantee import Verdict, prove
from autosync.search.trial import Trials
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps

STOCK = STOCK_DDP.name


@pytest.fixture
def finalists(model: ModelSpec, cluster: ClusterSpec) -> tuple[Candidate, Candidate]:
    built = [(name, build_preset(name, model, cluster)) for name in ("ddp", "sharded")]
    one, other = (
        Candidate(origin=f"preset:{name}", strategy=strategy, strategy_id=strategy_id(strategy, model, cluster))
        for name, strategy in built
    )
    return one, other


@pytest.fixture
def prove_with(model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...]):  # type: ignore[no-untyped-def]
    """The verdict on stock DDP and the two finalists, whose steps are given in this order."""

    def verdict(*steps: FakeSteps, seed: int = 0) -> Verdict:
        names = [STOCK, *(candidate.name for candidate in finalists)]
        service = FakeService(dict(zip(names, steps, strict=False)), seed=seed)
        trials = Trials(
            study="s", service=service, model=model, cluster=cluster, is_replayed=True, effort=NORMAL_EFFORT
        )
        proved = prove(trials, finalists[: len(steps) - 1], seed=seed)
        assert not service.prepared
        return proved

    return verdict


def _steps(seconds: float, *, noise: float = 0.01, fails_at: int | None = None) -> FakeSteps:
    return FakeSteps(seconds=seconds, noise=noise, fails_at=fails_at)


def test_the_fastest_of_those_that_are_faster_wins(prove_with, finalists: tuple[Candidate, ...]) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2), _steps(0.15), _steps(0.1))
    assert verdict.winner.candidate == finalists[1]
    assert verdict.beats_default
    assert [contest.candidate for contest in verdict.contests] == [STOCK_DDP, *finalists]
    assert verdict.contests[0].ratio is None
    speedups = [contest.ratio.speedup.value for contest in verdict.contests if contest.ratio is not None]
    assert speedups == pytest.approx([4 / 3, 2], rel=0.02)
    assert verdict.winner.measurement.exposed_seconds == pytest.approx(0.08, rel=0.05)
    # The order in which they come makes no difference.
    assert prove_with(_steps(0.2), _steps(0.1), _steps(0.15)).winner.candidate == finalists[0]


def test_what_is_slower_or_the_same_leaves_the_default(prove_with) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.1), _steps(0.1), _steps(0.2))
    assert verdict.winner.candidate == STOCK_DDP
    assert not verdict.beats_default
    assert str(verdict.contests[1].ratio).startswith("no difference found between ")
    assert verdict.contests[2].ratio.verdict == "slower"


def test_luck_wins_hardly_ever(prove_with) -> None:  # type: ignore[no-untyped-def]
    """Two finalists that equal stock DDP, forty times over: at most one in twenty may be named, and some luck."""
    named = sum(prove_with(*[_steps(0.1, noise=0.1)] * 3, seed=seed).beats_default for seed in range(40))
    assert named <= 4


def test_one_that_fails_again_is_left_out(prove_with, finalists: tuple[Candidate, ...]) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2), _steps(0.1), _steps(0.05, fails_at=8))
    assert verdict.winner.candidate == finalists[0]
    assert [contest.candidate for contest in verdict.contests] == [STOCK_DDP, finalists[0]]
    assert verdict.left_out[finalists[1].name].kind == "raised"


def test_without_stock_ddp_nothing_is_proved(prove_with) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OperationError, match=r"stock DDP could not be measured again \(raised\): .* nothing is proved"):
        prove_with(_steps(0.2, fails_at=8), _steps(0.1), _steps(0.05))
    with pytest.raises(OperationError, match=r"stock DDP could not be measured \(raised\): rank 0: stock DDP fails"):
        prove_with(_steps(0.2, fails_at=8))


def test_the_default_alone_is_measured_as_a_trial(prove_with) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2))
    assert verdict.winner == verdict.contests[0]
    assert not verdict.beats_default
    assert 0.19 < verdict.winner.measurement.median_seconds < 0.21
