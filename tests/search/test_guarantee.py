"""Who is declared the winner: nobody by luck, and nobody without stock DDP beside it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate, candidate
from autosync.search.effort import NORMAL_EFFORT
from autosync.search.guarantee import Rival, Verdict, choose_finalists, line_up, prove
from autosync.search.progress import Tried
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


@pytest.fixture
def rivals(model: ModelSpec, cluster: ClusterSpec) -> tuple[Rival, Rival]:
    """Buckets of one gradient each, and shards."""
    built = {name: build_preset(name, model, cluster) for name in ("all_reduce_per_variable", "p3")}
    bucket, preset = (candidate(f"preset:{name}", one, model, cluster) for name, one in built.items())
    return Rival(role="best bucket", candidate=bucket), Rival(role="best preset", candidate=preset)


@pytest.fixture
def among_rivals(model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], rivals: tuple[Rival, ...]):  # type: ignore[no-untyped-def]
    """The verdict on a finalist beside both rivals; steps by role."""

    def verdict(**seconds: float | FakeSteps) -> Verdict:
        trials = Trials(
            study="s", service=FakeService({}), model=model, cluster=cluster, is_replayed=True, effort=NORMAL_EFFORT
        )
        names = {entrant.role.replace(" ", "_"): entrant.name for entrant in line_up(trials, finalists[1:], rivals)}
        given = {name: seconds[role] for role, name in names.items()}
        steps = {name: one if isinstance(one, FakeSteps) else _steps(one) for name, one in given.items()}
        return prove(replace(trials, service=FakeService(steps)), finalists[1:], rivals=rivals)

    return verdict


def test_the_winner_is_held_against_every_baseline(among_rivals) -> None:  # type: ignore[no-untyped-def]
    verdict = among_rivals(default=0.2, best_bucket=0.18, finalist=0.1, best_preset=0.15)
    assert verdict.winner.entrant.role == "finalist"
    assert verdict.winner.entrant.settings is None
    assert [(ratio.verdict, round(ratio.speedup.value, 1)) for ratio in verdict.against] == [
        ("faster", 1.8),
        ("faster", 1.5),
    ]


def test_stock_ddp_with_an_argument_wins_over_what_is_not_for_certain_faster(among_rivals) -> None:  # type: ignore[no-untyped-def]
    verdict = among_rivals(default=0.2, best_bucket=0.1, finalist=0.0999, best_preset=0.15)
    assert verdict.beats_default
    assert verdict.winner.entrant.role == "best bucket"
    settings = verdict.winner.entrant.settings
    assert settings is not None
    assert settings.arguments().keys() == {"bucket_cap_mb"}
    roles = [contest.entrant.role for contest in verdict.contests]
    assert "finalist" in roles


def test_an_argument_that_is_not_for_certain_faster_itself_does_not_win(among_rivals) -> None:  # type: ignore[no-untyped-def]
    """Nor does it keep ours from winning, though no difference is found between the two."""
    noisy = FakeSteps(seconds=0.17, noise=0.4)
    verdict = among_rivals(default=0.2, best_bucket=noisy, finalist=0.17, best_preset=0.2)
    bucket = next(contest for contest in verdict.contests if contest.entrant.role == "best bucket")
    assert bucket.ratio.verdict == "no difference found"
    assert [ratio.verdict for ratio in verdict.against if ratio.other == bucket.name] == ["no difference found"]
    assert verdict.winner.entrant.role == "finalist"


def test_what_does_not_train_does_not_win(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...]
) -> None:
    half = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    steps = {
        STOCK: _steps(0.2),
        finalists[1].name: _steps(0.15),
        half.name: _steps(0.1),
        f"{half.name}, training": FakeSteps(seconds=0.1, loss=float("nan")),
    }
    service = FakeService(steps, others=FakeSteps(seconds=0.1))
    trials = Trials(study="s", service=service, model=model, cluster=cluster, is_replayed=False, effort=NORMAL_EFFORT)
    verdict = prove(trials, (half, finalists[1]))
    fastest = next(contest for contest in verdict.contests if contest.candidate == half)
    assert fastest.ratio is not None
    assert fastest.ratio.speedup.value > 1.9
    assert verdict.winner.candidate == finalists[1]
    found = verdict.fidelity(fastest)
    assert found is not None
    assert found.diverged
    assert verdict.fidelity(verdict.winner) is None


def test_nobody_takes_part_twice(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], rivals: tuple[Rival, ...]
) -> None:
    trials = Trials(
        study="s", service=FakeService({}), model=model, cluster=cluster, is_replayed=True, effort=NORMAL_EFFORT
    )
    bucket, preset = (rival.candidate for rival in rivals)

    def roles(chosen: Trials, *candidates: Candidate) -> list[str]:
        return [entrant.role for entrant in line_up(chosen, candidates, rivals)]

    assert roles(trials) == ["default"], "without finalists nothing is proved"
    assert roles(trials, *finalists) == ["default", "best bucket", "finalist", "finalist", "best preset"]
    assert roles(trials, bucket, finalists[0]) == ["default", "best bucket", "finalist", "best preset"]
    assert roles(trials, preset, finalists[0]) == ["default", "best bucket", "best preset", "finalist"]


def test_for_stock_ddp_the_fastest_is_tried_with_every_flag(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], rivals: tuple[Rival, ...]
) -> None:
    trials = Trials(
        study="s",
        service=FakeService({}),
        model=model,
        cluster=cluster,
        is_replayed=True,
        effort=NORMAL_EFFORT,
        target="ddp",
    )
    entrants = line_up(trials, (rivals[0].candidate, finalists[0]), rivals[:1])
    flags = [sorted(entrant.contestant.ddp.arguments().keys() - {"bucket_cap_mb"}) for entrant in entrants]
    views = "gradient_as_bucket_view"
    assert flags == [[], [], [views], [views], [], ["batched_grad_copy"], [views, "static_graph"]]
    assert all(entrant.contestant.bundle is None for entrant in entrants)
    assert len({entrant.name for entrant in entrants}) == len(entrants)


def test_an_exact_strategy_is_always_among_the_finalists(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], make_record: Callable[..., Record]
) -> None:
    lossy = [
        candidate(f"preset:{name}", build_preset(name, model, cluster), model, cluster) for name in ("fp16", "int8")
    ]
    tried = [
        Tried(candidate=one, record=make_record(position, one, 0.1 * (position + 1)))
        for position, one in enumerate((*lossy, *finalists))
    ]
    assert choose_finalists(tried, 2) == [*lossy, finalists[0]]
    assert choose_finalists(tried, 3) == [*lossy, finalists[0]]
    assert choose_finalists(tried[2:], 1) == [finalists[0]]
    assert choose_finalists([], 2) == []


def test_as_many_take_part_as_there_is_memory_for(among_rivals, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    steps = {"default": 0.2, "best_bucket": 0.18, "finalist": 0.1, "best_preset": 0.15}
    rooms = {0: ["default", "finalist"], 3: ["default", "best bucket", "finalist"], 4: None, None: None}
    for room, roles in rooms.items():
        monkeypatch.setattr("autosync.search.guarantee.most_at_once", lambda *_, room=room: room)
        verdict = among_rivals(**steps)
        kept = [contest.entrant.role for contest in verdict.contests]
        assert kept == (roles or ["default", "best bucket", "finalist", "best preset"])
        assert len(verdict.left_out) == 4 - len(kept)
        assert all("no room in memory" in failure.message for failure in verdict.left_out.values())
        assert verdict.winner.entrant.role == "finalist"


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
