"""The winner of the proof: nothing wins by luck, and nothing wins without a comparison with stock DDP."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.candidates import STOCK_DDP, Candidate, candidate
from autosync.search.guarantee import Baseline, Verdict, choose_finalists, proof_contestants, prove
from autosync.search.measurement_effort import NORMAL_EFFORT
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.progress import FinishedTrial
from autosync.search.trial_runner import TrialRunner
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant
from autosync.trials.failures import Blame

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

    def verdict(*steps: FakeSteps, seed: int = 0, **options: Any) -> Verdict:
        names = [STOCK, *(candidate.name for candidate in finalists)]
        service = FakeService(dict(zip(names, steps, strict=False)), seed=seed)
        trials = TrialRunner(
            study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=True, effort=NORMAL_EFFORT
        )
        proved = prove(trials, finalists[: len(steps) - 1], seed=seed, **options)
        assert not service.prepared
        return proved

    return verdict


def _steps(seconds: float, *, noise: float = 0.01, fails_at: int | None = None) -> FakeSteps:
    return FakeSteps(seconds=seconds, noise=noise, fails_at=fails_at)


def test_the_fastest_of_those_that_are_faster_wins(prove_with, finalists: tuple[Candidate, ...]) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2), _steps(0.105), _steps(0.1))
    assert verdict.winner.candidate == finalists[1]
    assert verdict.beats_default
    assert [result.candidate for result in verdict.results] == [STOCK_DDP, *finalists]
    assert verdict.results[0].ratio is None
    speedups = [result.ratio.speedup.value for result in verdict.results if result.ratio is not None]
    assert speedups == pytest.approx([0.2 / 0.105, 2], rel=0.02)
    assert verdict.winner.measurement.exposed_seconds == pytest.approx(0.08, rel=0.05)
    # The order in which they come makes no difference.
    assert prove_with(_steps(0.2), _steps(0.1), _steps(0.105)).winner.candidate == finalists[0]


def test_a_finalist_far_behind_another_is_stopped(prove_with) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2), _steps(0.15), _steps(0.1))
    stopped, winner = verdict.results[1:]
    assert (stopped.ratio, stopped.measurement.flags) == (None, ("stopped_early",))
    assert verdict.winner.candidate == winner.candidate
    # The default is no finalist: it may be as slow as it likes.
    assert prove_with(_steps(0.5), _steps(0.1), _steps(0.1)).default.measurement.flags == ()


def test_no_winner_is_faster_than_the_loaders_of_a_script(prove_with, finalists: tuple[Candidate, ...]) -> None:  # type: ignore[no-untyped-def]
    asked = []

    def sustained(contestant: Contestant) -> float:
        asked.append(contestant.name)
        return 0.18

    verdict = prove_with(_steps(0.2), _steps(0.15), _steps(0.1), sustained=sustained)
    # The fastest trains alone.
    assert asked == [finalists[1].name]
    assert verdict.loader_seconds == 0.18
    assert verdict.beats_default
    seconds = [result.measurement.median_seconds for result in verdict.results]
    assert seconds == pytest.approx([0.2, 0.18, 0.18], rel=0.01)
    assert verdict.winner.ratio.speedup.value == pytest.approx(0.2 / 0.18, rel=0.01)
    assert not prove_with(_steps(0.2), _steps(0.1), sustained=lambda _: 0.3).beats_default


def test_what_is_not_hidden_knows_how_fast_devices_compute(model: ModelSpec, cluster: ClusterSpec) -> None:
    slow = replace(cluster, nodes=tuple(replace(node, compute=0.5) for node in cluster.nodes))
    sharded = candidate("preset:sharded", build_preset("sharded", model, slow), model, slow)
    service = FakeService({STOCK: _steps(0.2), sharded.name: _steps(0.1)})
    trials = TrialRunner(
        study="s", service=service, preparer=TrialPreparer(model, slow), is_replayed=True, effort=NORMAL_EFFORT
    )
    exposed = [one.measurement.exposed_seconds for one in prove(trials, [sharded]).results]
    assert exposed == pytest.approx([0.16, 0.06], rel=0.05)
    assert prove(trials, []).winner.measurement.exposed_seconds == pytest.approx(0.16, rel=0.05)


def test_what_is_slower_or_the_same_leaves_the_default(prove_with) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.1), _steps(0.1), _steps(0.105))
    assert verdict.winner.candidate == STOCK_DDP
    assert not verdict.beats_default
    assert str(verdict.results[1].ratio).startswith("no difference found between ")
    assert verdict.results[2].ratio.verdict == "slower"


@pytest.fixture
def baselines(model: ModelSpec, cluster: ClusterSpec) -> tuple[Baseline, Baseline]:
    """Buckets of one gradient each, and shards."""
    built = {name: build_preset(name, model, cluster) for name in ("all_reduce_per_variable", "p3")}
    bucket, preset = (candidate(f"preset:{name}", one, model, cluster) for name, one in built.items())
    return Baseline(role="best bucket", candidate=bucket), Baseline(role="best preset", candidate=preset)


@pytest.fixture
def among_baselines(  # type: ignore[no-untyped-def]
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], baselines: tuple[Baseline, ...]
):
    """The verdict on a finalist beside both baselines; steps by role."""

    def verdict(**seconds: float | FakeSteps) -> Verdict:
        trials = TrialRunner(
            study="s",
            service=FakeService({}),
            preparer=TrialPreparer(model, cluster),
            is_replayed=True,
            effort=NORMAL_EFFORT,
        )
        names = {
            contestant.role.replace(" ", "_"): contestant.name
            for contestant in proof_contestants(trials, finalists[1:], baselines)
        }
        given = {name: seconds[role] for role, name in names.items()}
        steps = {name: one if isinstance(one, FakeSteps) else _steps(one) for name, one in given.items()}
        return prove(replace(trials, service=FakeService(steps)), finalists[1:], baselines=baselines)

    return verdict


def test_the_winner_is_held_against_every_baseline(among_baselines) -> None:  # type: ignore[no-untyped-def]
    verdict = among_baselines(default=0.2, best_bucket=0.18, finalist=0.1, best_preset=0.15)
    assert verdict.winner.contestant.role == "finalist"
    assert verdict.winner.contestant.settings is None
    assert [(ratio.verdict, round(ratio.speedup.value, 1)) for ratio in verdict.against] == [
        ("faster", 1.8),
        ("faster", 1.5),
    ]


def test_stock_ddp_with_an_argument_wins_over_what_is_not_for_certain_faster(among_baselines) -> None:  # type: ignore[no-untyped-def]
    verdict = among_baselines(default=0.2, best_bucket=0.1, finalist=0.0999, best_preset=0.15)
    assert verdict.beats_default
    assert verdict.winner.contestant.role == "best bucket"
    settings = verdict.winner.contestant.settings
    assert settings is not None
    assert settings.arguments().keys() == {"bucket_cap_mb"}
    roles = [result.contestant.role for result in verdict.results]
    assert "finalist" in roles


def test_an_argument_that_is_not_for_certain_faster_itself_does_not_win(among_baselines) -> None:  # type: ignore[no-untyped-def]
    """Nor does it keep ours from winning, though no difference is found between the two."""
    noisy = FakeSteps(seconds=0.185, noise=0.4)
    verdict = among_baselines(default=0.2, best_bucket=noisy, finalist=0.17, best_preset=0.2)
    bucket = next(result for result in verdict.results if result.contestant.role == "best bucket")
    assert bucket.ratio.verdict == "no difference found"
    assert [ratio.verdict for ratio in verdict.against if ratio.other == bucket.name] == ["no difference found"]
    assert verdict.winner.contestant.role == "finalist"


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
    trials = TrialRunner(
        study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=False, effort=NORMAL_EFFORT
    )
    verdict = prove(trials, (half, finalists[1]))
    fastest = next(result for result in verdict.results if result.candidate == half)
    assert fastest.ratio is not None
    assert fastest.ratio.speedup.value > 1.9
    assert verdict.winner.candidate == finalists[1]
    found = verdict.fidelity(fastest)
    assert found is not None
    assert found.diverged
    assert verdict.fidelity(verdict.winner) is None


@pytest.mark.parametrize(("blame", "may_win"), [("strategy", False), ("either", True), ("machines", True)])
def test_what_fails_in_training_by_its_own_fault_does_not_win(
    blame: Blame, may_win: bool, model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...]
) -> None:
    half = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    steps = {
        STOCK: _steps(0.2),
        finalists[1].name: _steps(0.15),
        half.name: _steps(0.1),
        # As a training that checks its loss does.
        f"{half.name}, training": FakeSteps(seconds=0.1, fails_at=5, blame=blame),
    }
    trials = TrialRunner(
        study="s",
        service=FakeService(steps, others=FakeSteps(seconds=0.1)),
        preparer=TrialPreparer(model, cluster),
        is_replayed=False,
        effort=NORMAL_EFFORT,
    )
    verdict = prove(trials, (half, finalists[1]))
    assert verdict.winner.candidate == (half if may_win else finalists[1])
    found = str(verdict.fidelities[half.strategy_id])
    assert found.endswith("so it cannot win") != may_win
    assert ("its training failed, while exact training did not (raised: " in found) != may_win


def test_nobody_takes_part_twice(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], baselines: tuple[Baseline, ...]
) -> None:
    trials = TrialRunner(
        study="s",
        service=FakeService({}),
        preparer=TrialPreparer(model, cluster),
        is_replayed=True,
        effort=NORMAL_EFFORT,
    )
    bucket, preset = (baseline.candidate for baseline in baselines)

    def roles(chosen: TrialRunner, *candidates: Candidate) -> list[str]:
        return [contestant.role for contestant in proof_contestants(chosen, candidates, baselines)]

    assert roles(trials) == ["default"], "without finalists nothing is proved"
    assert roles(trials, *finalists) == ["default", "best bucket", "finalist", "finalist", "best preset"]
    assert roles(trials, bucket, finalists[0]) == ["default", "best bucket", "finalist", "best preset"]
    assert roles(trials, preset, finalists[0]) == ["default", "best bucket", "best preset", "finalist"]


def test_for_stock_ddp_the_fastest_is_tried_with_every_flag(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], baselines: tuple[Baseline, ...]
) -> None:
    trials = TrialRunner(
        study="s",
        service=FakeService({}),
        preparer=TrialPreparer(model, cluster),
        is_replayed=True,
        effort=NORMAL_EFFORT,
        target="ddp",
    )
    contestants = proof_contestants(trials, (baselines[0].candidate, finalists[0]), baselines[:1])
    flags = [sorted(contestant.run_as.ddp.arguments().keys() - {"bucket_cap_mb"}) for contestant in contestants]
    views = "gradient_as_bucket_view"
    assert flags == [[], [], [views], [views], [], ["batched_grad_copy"], [views, "static_graph"]]
    assert all(contestant.run_as.bundle is None for contestant in contestants)
    assert len({contestant.name for contestant in contestants}) == len(contestants)


def test_an_exact_strategy_is_always_among_the_finalists(
    model: ModelSpec, cluster: ClusterSpec, finalists: tuple[Candidate, ...], make_record: Callable[..., Record]
) -> None:
    lossy = [
        candidate(f"preset:{name}", build_preset(name, model, cluster), model, cluster) for name in ("fp16", "int8")
    ]
    tried = [
        FinishedTrial(candidate=one, record=make_record(position, one, 0.1 * (position + 1)))
        for position, one in enumerate((*lossy, *finalists))
    ]
    assert choose_finalists(tried, 2) == [*lossy, finalists[0]]
    assert choose_finalists(tried, 3) == [*lossy, finalists[0]]
    assert choose_finalists(tried[2:], 1) == [finalists[0]]
    assert choose_finalists([], 2) == []


def test_what_an_earlier_proof_showed_counts(
    finalists: tuple[Candidate, ...], make_record: Callable[..., Record]
) -> None:
    tried = [
        FinishedTrial(candidate=one, record=make_record(position, one, 0.1 * (position + 1)))
        for position, one in enumerate(finalists)
    ]
    first, *_, last = finalists
    assert first not in choose_finalists(tried, 1, lost=[first.strategy_id])
    assert choose_finalists(tried, 1, winner_id=last.strategy_id) == [first, last]
    assert choose_finalists(tried, 1, winner_id=first.strategy_id) == [first]


def test_as_many_take_part_as_there_is_memory_for(among_baselines, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    steps = {"default": 0.2, "best_bucket": 0.18, "finalist": 0.1, "best_preset": 0.15}
    rooms = {0: ["default", "finalist"], 3: ["default", "best bucket", "finalist"], 4: None, None: None}
    for room, roles in rooms.items():
        monkeypatch.setattr("autosync.search.guarantee.most_at_once", lambda *_, room=room, **__: room)
        verdict = among_baselines(**steps)
        kept = [result.contestant.role for result in verdict.results]
        assert kept == (roles or ["default", "best bucket", "finalist", "best preset"])
        assert len(verdict.left_out) == 4 - len(kept)
        assert all("no room in memory" in failure.message for failure in verdict.left_out.values())
        assert verdict.winner.contestant.role == "finalist"


def test_luck_wins_hardly_ever(prove_with) -> None:  # type: ignore[no-untyped-def]
    """Two finalists that equal stock DDP, forty times over: at most one in twenty may be named, and some luck."""
    named = sum(prove_with(*[_steps(0.1, noise=0.1)] * 3, seed=seed).beats_default for seed in range(40))
    assert named <= 4


def test_one_that_fails_again_is_left_out(prove_with, finalists: tuple[Candidate, ...]) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2), _steps(0.1), _steps(0.05, fails_at=8))
    assert verdict.winner.candidate == finalists[0]
    assert [result.candidate for result in verdict.results] == [STOCK_DDP, finalists[0]]
    assert verdict.left_out[finalists[1].name].kind == "raised"


def test_without_stock_ddp_nothing_is_proved(prove_with) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OperationError, match=r"stock DDP could not be measured again \(raised\): .* nothing is proved"):
        prove_with(_steps(0.2, fails_at=8), _steps(0.1), _steps(0.05))
    with pytest.raises(OperationError, match=r"stock DDP could not be measured \(raised\): rank 0: stock DDP fails"):
        prove_with(_steps(0.2, fails_at=8))


def test_the_default_alone_is_measured_as_a_trial(prove_with) -> None:  # type: ignore[no-untyped-def]
    verdict = prove_with(_steps(0.2))
    assert verdict.winner == verdict.results[0]
    assert not verdict.beats_default
    assert 0.19 < verdict.winner.measurement.median_seconds < 0.21
