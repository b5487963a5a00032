"""What averages parameters now and then is measured with its averages, and what reads with workers with its waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosync.datasets.measured_input import PARTS
from autosync.plan.bundling import bundled
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import compare
from autosync.trials.contestant import Contestant
from autosync.trials.periods import (
    MOST_STEPS,
    STEPS_AT_ONCE,
    PeriodService,
    steps_of_sample,
    strategy_period,
    turn_steps,
)
from autosync.trials.policy import DEFAULT_POLICY, Policy, Tally, measure, policy_of_samples, warm_up
from autosync.trials.samples import Service
from autosync.trials.service import StepSamples, TrialFailed

MODEL, CLUSTER = load_model("squeezenet"), load_cluster("4-hosts")
USUAL, AVERAGING, EVERY = 0.1, 0.5, 4
STEP = ((EVERY - 1) * USUAL + AVERAGING) / EVERY


def _contestant(every: int = EVERY) -> Contestant:
    strategy = build_preset("local_sgd", MODEL, CLUSTER, every=every)
    return Contestant(name="local", bundle=bundled(strategy, MODEL, CLUSTER))


def _samples(steps: Sequence[float]) -> StepSamples:
    """The samples of two ranks with the same steps."""
    return StepSamples(
        step_seconds=(tuple(steps), tuple(steps)),
        cpu_share=0.25,
        bytes_sent=(100 * len(steps),) * 2,
        bytes_received=(100 * len(steps),) * 2,
        peak_memory_bytes=(1000, 2000),
    )


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
        return _samples(steps)


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
    # Requests are short, because each has its deadline, and have whole periods.
    assert {count for what, _, count in service.calls if what == "run"} == {EVERY, STEPS_AT_ONCE}
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
    assert wrapped.steps_each("plain") == 1
    assert len(wrapped.run("plain", 7, settle=True).step_seconds[0]) == 7
    assert service.calls[-1] == ("run and settle", "plain", 7)
    wrapped.release("plain")
    assert not service.prepared


def test_what_no_trial_is_long_enough_for_is_refused() -> None:
    service = _service()
    assert strategy_period(build_preset("local_sgd", MODEL, CLUSTER, every=MOST_STEPS)) == MOST_STEPS
    with pytest.raises(TrialFailed, match="before 65 steps are over"):
        PeriodService(service).prepare(_contestant(MOST_STEPS + 1))
    assert not service.prepared


class Late(FakeService):
    """After idle links, the first LAG + 1 steps of `late` have nothing to wait for."""

    num_since_idle = 0

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        if name != "late":
            return super().run(name, num_steps, settle=settle)
        first = self.num_since_idle
        self.num_since_idle = 0 if settle else first + num_steps
        return _samples([USUAL if number <= LAG else 3 * USUAL for number in range(first, first + num_steps)])


LAG = 4


def test_what_comes_late_is_measured_with_something_to_wait_for() -> None:
    """By the first steps after idle links it would be faster than what takes 0.15 s in each."""
    bundle = bundled(build_preset("ssp", MODEL, CLUSTER, staleness=LAG), MODEL, CLUSTER)
    service = Late({"late": FakeSteps(seconds=USUAL), "plain": FakeSteps(seconds=0.15, num_warmup_steps=0)})
    found = compare(service, [Contestant(name="plain"), Contestant(name="late", bundle=bundle)])
    assert found.measurements["late"].median_seconds == pytest.approx(3 * USUAL)
    assert found.ratios[0].verdict == "slower"


NUM_WORKERS, READY, WAITED, START = 4, 0.1, 0.5, 5.0
TURN = ((NUM_WORKERS - 1) * READY + WAITED) / NUM_WORKERS


class ReadingService(FakeService):
    """Each fourth step of `reads` waits for all workers, the first of all also for their start. `raw` has its runs."""

    def __init__(self, *, noise: float = 0.0, plain_seconds: float = 0.15) -> None:
        plain = FakeSteps(seconds=plain_seconds, num_warmup_steps=0)
        super().__init__({"reads": FakeSteps(seconds=READY), "plain": plain})
        self.raw: list[tuple[list[float], bool]] = []
        self._noise = noise

    def prepare(self, contestant: Contestant) -> int:  # type: ignore[override]  # like the real service
        super().prepare(contestant)
        return NUM_WORKERS if contestant.name == "reads" else 1

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        if name != "reads":
            return super().run(name, num_steps, settle=settle)
        begin = self._taken[name]
        self._taken[name] += num_steps
        steps = [self._seconds(number) for number in range(begin, begin + num_steps)]
        self.raw.append((steps, settle))
        sums = dict.fromkeys(PARTS, 0.02 * num_steps) | {"num_batches": num_steps, "hosts": {}}
        return replace(_samples(steps), inputs=[sums, sums])

    def _seconds(self, number: int) -> float:
        if number == 0:
            return START
        usual = WAITED if number % NUM_WORKERS == 0 else READY
        return usual * (1 + self._noise * self._random.random())


def test_the_start_of_workers_is_in_no_value_of_a_trial() -> None:
    service = ReadingService()
    found = measure(service, Contestant(name="reads"))
    assert service.raw[0][0][0] == START
    for rank in found.step_seconds:
        assert rank == pytest.approx([TURN] * len(rank))
    assert found.median_seconds == pytest.approx(TURN)
    assert not found.flags
    assert found.bytes_sent == (100, 100)
    assert found.input is not None
    assert found.input.wait_seconds == pytest.approx((0.02, 0.02))


def test_the_budget_is_the_time_of_all_steps_with_the_start_of_workers() -> None:
    service = ReadingService(noise=1.0)
    measure(service, Contestant(name="reads"), Policy(budget_seconds=20.0, max_steps=2000))
    assert 17 < sum(sum(steps) for steps, _ in service.raw) < 22


EPOCH, AHEAD = 9, 4
FOUND, AWAITED = 0.01, 0.14
OVER_EPOCH = (AHEAD * FOUND + (EPOCH - AHEAD) * AWAITED) / EPOCH


class ReadingAhead(ReadingService):
    """Whole turns of `reads` find batches that were read ahead, more than half wait for theirs."""

    def _seconds(self, number: int) -> float:
        return FOUND if number // NUM_WORKERS % EPOCH < AHEAD else AWAITED


def test_a_trial_of_steps_that_wait_for_a_loader_tells_their_mean() -> None:
    service = ReadingAhead()
    found = measure(service, Contestant(name="reads"), Policy(max_steps=140, interval_share=0.001))
    taken = np.mean(found.step_seconds)
    assert found.median_seconds == pytest.approx(taken)
    assert found.median_seconds == pytest.approx(OVER_EPOCH, rel=0.1)
    assert found.low_seconds < OVER_EPOCH < found.high_seconds


def test_a_comparison_of_steps_that_wait_for_a_loader_is_of_their_means() -> None:
    """By the median of its steps, `reads` would be slower than what takes 0.12 s in each."""
    service = ReadingAhead(plain_seconds=0.12)
    found = compare(service, [Contestant(name="plain"), Contestant(name="reads")])
    assert np.median(found.measurements["reads"].step_seconds) > 0.12
    assert found.measurements["reads"].median_seconds == pytest.approx(OVER_EPOCH, rel=0.1)
    assert found.ratios[0].verdict == "faster"
    assert found.between("reads", "plain").verdict == "faster"


def test_three_rounds_say_too_little_of_waits_to_stop_a_contestant() -> None:
    found = compare(
        ReadingAhead(plain_seconds=0.5),
        [Contestant(name="reads"), Contestant(name="plain")],
        may_stop=["reads", "plain"],
    )
    assert list(found.blocks) == ["reads", "plain"]


LONG_WAIT = 6.0


class ReadingShortEpochs(ReadingService):
    """An epoch of `reads` is as long as a block, and its first step waits long. Turns begin when the workers begin."""

    def _seconds(self, number: int) -> float:
        return LONG_WAIT if number % (6 * NUM_WORKERS) == 13 * NUM_WORKERS % (6 * NUM_WORKERS) else READY


def test_blocks_that_are_as_long_as_epochs_do_not_leave_out_the_same_steps_of_all() -> None:
    service = ReadingShortEpochs()
    found = compare(service, [Contestant(name="plain"), Contestant(name="reads")])
    assert found.steps_per_round == {"plain": 5, "reads": 5}
    num_steps = 6 * NUM_WORKERS
    over_epoch = ((num_steps - 1) * READY + LONG_WAIT) / num_steps
    assert found.measurements["reads"].median_seconds == pytest.approx(over_epoch, rel=0.15)


def test_rounds_share_no_step() -> None:
    service = ReadingService(noise=0.1)
    found = compare(service, [Contestant(name="plain"), Contestant(name="reads")])
    taken: list[float] = []
    expected = []
    for steps, settles in service.raw:
        taken += steps
        if settles:
            # The first sample of a block is not counted.
            block = taken[-found.steps_per_round["reads"] * NUM_WORKERS :]
            assert len(taken) >= len(block) + NUM_WORKERS
            turns = [block[begin : begin + NUM_WORKERS] for begin in range(0, len(block), NUM_WORKERS)]
            expected.append([sum(turn) / NUM_WORKERS for turn in turns])
            taken = []
    assert [list(block) for block in found.blocks["reads"]] == [pytest.approx(block) for block in expected]
    assert found.ratios[0].verdict == "slower"


@pytest.mark.parametrize(("num_workers", "accumulation", "steps"), [(0, 3, 1), (8, 1, 8), (8, 4, 2), (6, 4, 3)])
def test_a_turn_ends_when_all_workers_have_given_equally_many_batches(
    num_workers: int, accumulation: int, steps: int
) -> None:
    assert turn_steps(num_workers, accumulation) == steps
    assert steps * accumulation % max(num_workers, 1) == 0


@pytest.mark.parametrize(
    ("period", "turn", "steps"),
    [(1, 1, 1), (1, 8, 8), (4, 6, 12), (MOST_STEPS, 3, MOST_STEPS), (1, 512, 64), (5, 16, 60)],
)
def test_samples_have_whole_periods_and_turns_as_far_as_trials_are_long_enough(
    period: int, turn: int, steps: int
) -> None:
    assert steps_of_sample(period, turn) == steps


def test_the_warm_up_of_a_comparison_keeps_to_the_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: dict[str, float] = {}

    def watched(service: Service, name: str, policy: Policy) -> Tally:
        budgets[name] = policy.budget_seconds
        return warm_up(service, name, policy)

    monkeypatch.setattr("autosync.trials.compare.warm_up", watched)
    compare(_service(), [Contestant(name="plain"), _contestant()], policy=Policy(budget_seconds=20.0))
    # A tally has the mean of each period, so that is what spends the budget.
    assert budgets == {"plain": 20.0, "local": 20.0 / EVERY}


def test_a_policy_may_depend_on_the_steps_of_a_sample() -> None:
    asked: list[int] = []

    def policy(steps_each: int) -> Policy:
        asked.append(steps_each)
        return DEFAULT_POLICY

    assert policy_of_samples(policy, 5).budget_seconds == DEFAULT_POLICY.budget_seconds / 5
    measure(_service(), _contestant(), policy)
    assert asked == [5, EVERY]
