"""What averages parameters now and then is measured with its averages."""

from __future__ import annotations

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.averaging_periods import MOST_STEPS, PeriodService, period_of
from autosync.trials.compare import compare
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy, measure
from autosync.trials.service import StepSamples, TrialFailed

MODEL, CLUSTER = load_model("squeezenet"), load_cluster("4-hosts")
USUAL, AVERAGING, EVERY = 0.1, 0.5, 4
STEP = ((EVERY - 1) * USUAL + AVERAGING) / EVERY


def _contestant(every: int = EVERY) -> Contestant:
    strategy = build_preset("local_sgd", MODEL, CLUSTER, every=every)
    return Contestant(name="local", bundle=bundled(strategy, MODEL, CLUSTER))


class NowAndThen(FakeService):
    """Every so many steps of `local` take longer."""

    num_taken = 0

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        if name != "local":
            return super().run(name, num_steps, settle=settle)
        self.calls.append(("run", name, num_steps))
        steps = []
        for _ in range(num_steps):
            self.num_taken += 1
            steps.append(AVERAGING if self.num_taken % EVERY == 0 else USUAL)
        return StepSamples(
            step_seconds=(tuple(steps), tuple(steps)),
            cpu_share=0.25,
            bytes_sent=(100 * num_steps,) * 2,
            bytes_received=(100 * num_steps,) * 2,
            peak_memory_bytes=(1000, 2000),
        )


def _service() -> NowAndThen:
    return NowAndThen({"local": FakeSteps(seconds=USUAL), "plain": FakeSteps(seconds=0.15, num_warmup_steps=0)})


def test_a_trial_has_the_averages_in_it() -> None:
    service = _service()
    found = measure(service, _contestant())
    assert found.median_seconds == pytest.approx(STEP)
    assert found.low_seconds == found.high_seconds == pytest.approx(STEP)
    assert not found.flags
    assert found.bytes_sent == (100, 100)
    assert found.peak_memory_bytes == (1000, 2000)
    # No request is longer than a period: each has its deadline.
    assert {count for what, _, count in service.calls if what == "run"} == {EVERY}
    assert not service.prepared


def test_the_budget_is_of_all_steps() -> None:
    service, policy = _service(), Policy(budget_seconds=20.0)
    measure(service, _contestant(), policy)
    assert 12 < service.num_taken * STEP <= policy.budget_seconds


def test_in_a_comparison_too() -> None:
    """By single steps it would be faster than what takes 0.15 s in each."""
    found = compare(_service(), [Contestant(name="plain"), _contestant()])
    assert found.measurements["local"].median_seconds == pytest.approx(STEP)
    (ratio,) = found.ratios
    assert ratio.verdict == "slower"
    assert ratio.speedup.value == pytest.approx(0.15 / STEP, rel=0.02)


def test_what_does_the_same_in_each_step_is_run_as_it_was() -> None:
    service = FakeService({"plain": FakeSteps(seconds=0.1)})
    wrapped = PeriodService(service)
    wrapped.prepare(Contestant(name="plain"))
    assert wrapped.steps_each("plain") == period_of(Contestant(name="plain")) == 1
    assert len(wrapped.run("plain", 7, settle=True).step_seconds[0]) == 7
    assert service.calls[-1] == ("run and settle", "plain", 7)
    wrapped.release("plain")
    assert not service.prepared


def test_what_no_trial_is_long_enough_for_is_refused() -> None:
    service = _service()
    assert period_of(_contestant(MOST_STEPS)) == MOST_STEPS
    with pytest.raises(TrialFailed, match="before 65 steps are over"):
        PeriodService(service).prepare(_contestant(MOST_STEPS + 1))
    assert not service.prepared
