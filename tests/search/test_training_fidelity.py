"""The effect of inexact strategies on training: on real ranks with a task, and without a possible measurement."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from autosync.search.candidates import Candidate, candidate
from autosync.search.measurement_effort import QUICK_EFFORT
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.training_fidelity import NUM_LAST, NUM_STEPS, TrainingFidelity, measure_fidelities
from autosync.search.trial_runner import TrialRunner
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.service import TrialService

TASK = str(Path(__file__).with_name("tiny.py"))


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialRunner]:
    model, cluster = model_of(TASK), load_cluster("local-2")
    folder = tmp_path_factory.mktemp("ranks")
    with TrialService(target=TASK, model=model, cluster=cluster, folder=folder, timeout_seconds=60.0) as service:
        yield TrialRunner(
            study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=False, effort=QUICK_EFFORT
        )


def _preset(trials: TrialRunner, name: str) -> Candidate:
    return candidate(f"preset:{name}", build_preset(name, trials.model, trials.cluster), trials.model, trials.cluster)


def _fidelity(trials: TrialRunner, one: Candidate) -> TrainingFidelity:
    (found,) = measure_fidelities(trials, [one]).values()
    return found


@pytest.mark.slow
def test_what_hardly_differs_has_no_error_and_the_same_losses(
    trials: TrialRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(variable.name for variable in trials.model.variables)
    ring = Strategy(messages=(Message(parts=names, synchroniser=AllReduce(topology="ring")),))
    # Whoever updates, and whether forward passes are overlapped or not.
    presets = [_preset(trials, name) for name in ("sharded", "ps", "p3")]
    # What is exact is never asked about: here it is, to see that the figures are right.
    monkeypatch.setattr(Strategy, "is_exact", False)
    for one in (*presets, candidate("ring", ring, trials.model, trials.cluster)):
        found = _fidelity(trials, one)
        assert found.note == ""
        assert found.gradient_error == pytest.approx(0.0, abs=1e-5)
        assert found.loss == pytest.approx(found.exact_loss, rel=1e-4)
        assert found.exact_loss is not None
        assert found.first_loss is not None
        assert found.exact_loss < found.first_loss, "it learns"


def test_the_coarser_the_codec_the_larger_the_error(trials: TrialRunner) -> None:
    presets = [_preset(trials, name) for name in ("fp16", "bf16", "int8", "sign")]
    found = measure_fidelities(trials, presets)
    errors = [found[one.strategy_id].gradient_error for one in presets]
    assert all(error is not None for error in errors)
    assert 1e-5 < errors[0] < errors[1] < errors[2] < errors[3] < 1.5  # type: ignore[operator]


def test_a_stale_strategy_has_losses_alone(trials: TrialRunner) -> None:
    found = _fidelity(trials, _preset(trials, "local_sgd"))
    assert found.gradient_error is None
    assert found.loss is not None
    assert found.loss != found.exact_loss
    assert str(found).startswith(f"after {NUM_STEPS} steps its loss is ")


def test_replayed_compute_has_no_gradients(model: ModelSpec, cluster: ClusterSpec) -> None:
    service = FakeService({}, others=FakeSteps(seconds=0.1))
    trials = TrialRunner(
        study="s", service=service, preparer=TrialPreparer(model, cluster), is_replayed=True, effort=QUICK_EFFORT
    )
    one = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    assert str(_fidelity(trials, one)).startswith("what it does to training is not known")
    assert service.calls == []


def _fake_trials(
    model: ModelSpec, cluster: ClusterSpec, others: FakeSteps, steps: Mapping[str, FakeSteps] | None = None
) -> TrialRunner:
    return TrialRunner(
        study="s",
        service=FakeService(steps or {}, others=others),
        preparer=TrialPreparer(model, cluster),
        is_replayed=False,
        effort=QUICK_EFFORT,
    )


def test_what_fails_is_told(model: ModelSpec, cluster: ClusterSpec) -> None:
    one = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    trials = _fake_trials(model, cluster, FakeSteps(seconds=0.1, fails_at=5))
    assert str(_fidelity(trials, one)).startswith("what it does to training could not be measured (raised: ")


def test_only_what_is_inexact_is_looked_at_and_nothing_twice(model: ModelSpec, cluster: ClusterSpec) -> None:
    trials = _fake_trials(model, cluster, FakeSteps(seconds=0.1, gradient_error=0.25, loss=2.0))
    exact, half = (
        candidate(f"preset:{name}", build_preset(name, model, cluster), model, cluster) for name in ("ddp", "fp16")
    )
    found = measure_fidelities(trials, [exact, half, half])
    figures = TrainingFidelity(gradient_error=0.25, num_steps=NUM_STEPS, first_loss=2.0, loss=2.0, exact_loss=2.0)
    assert found == {half.strategy_id: figures}
    assert str(figures) == (
        "its averaged gradients are off by 0.25 of their norm; after 60 steps its loss is 2, that of exact training 2"
    )
    assert isinstance(trials.service, FakeService)
    trained = [name for what, name, _ in trials.service.calls if what == "prepare" and name.endswith("training")]
    assert trained == ["stock DDP, training", f"{half.name}, training"]
    # So many steps at a time: each request has the deadline of a trial.
    assert max(count for what, _, count in trials.service.calls if what.startswith("run")) == NUM_LAST


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_told(loss: float) -> None:
    lost = TrainingFidelity(gradient_error=float("inf"), num_steps=60, loss=loss, exact_loss=1.0)
    assert lost.diverged
    assert str(lost).endswith(
        "after 60 steps its loss is no number any more, that of exact training 1; so it cannot win"
    )
    plain = lost.to_plain()
    assert (plain["gradient_error"], plain["loss"], plain["exact_loss"]) == (None, None, 1.0)
    assert plain["in_words"] == str(lost)


def test_where_exact_training_has_no_loss_either_nothing_is_held_against_a_strategy() -> None:
    nan = float("nan")
    assert not TrainingFidelity(num_steps=60, loss=nan, exact_loss=nan).diverged
    assert not TrainingFidelity(note="not known").diverged


def test_losses_count_although_the_error_of_gradients_is_unknown(model: ModelSpec, cluster: ClusterSpec) -> None:
    one = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    steps = {f"{one.name}, gradients": FakeSteps(seconds=0.1, fails_at=1)}
    trials = _fake_trials(model, cluster, FakeSteps(seconds=0.1, loss=2.0), steps)
    found = _fidelity(trials, one)
    assert (found.gradient_error, found.loss, found.cannot_win) == (None, 2.0, False)
    assert str(found) == (
        f"the error of its gradients could not be measured (raised: rank 0: {one.name}, gradients fails here); "
        "after 60 steps its loss is 2, that of exact training 2"
    )
