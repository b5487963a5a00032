"""How long is measured, from samples alone: no clock, no ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.contestant import Contestant
from autosync.trials.policy import (
    DEFAULT_POLICY,
    Policy,
    Tally,
    doubts,
    exposed_seconds,
    first_steady_step,
    is_clearly_worse,
    is_enough,
    is_level,
    is_noisy,
    measure,
    next_run,
    num_discarded,
    warmup_ends,
)
from autosync.trials.service import StepSamples, TrialFailed
from autosync.trials.statistics import correlated_interval

ME = Contestant(name="me")
TIMES = st.lists(st.floats(1e-3, 10), min_size=1, max_size=60)


def _noise(count: int, share: float = 0.01, seed: int = 0) -> list[float]:
    return (1 + share * np.random.default_rng(seed).standard_normal(count)).tolist()


@pytest.mark.parametrize(
    ("seconds", "level"),
    [
        ([1.0] * 8, True),
        ([1.0] * 4 + [1.02] * 4, True),
        ([1.0] * 4 + [1.1] * 4, False),
        ([1.1] * 4 + [1.0] * 4, False),
        ([9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 9.0], True),
        ([9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0], False),
        ([1.8, 1.6, 1.4, 1.2, 1.0, 1.0, 1.0, 1.0], False),
    ],
)
def test_level(seconds: list[float], level: bool) -> None:
    assert is_level(seconds, share=0.03) is level


def test_steps_that_scatter_widely_are_level_all_the_same() -> None:
    found = [is_level(_noise(8, 0.2, seed), share=0.01) for seed in range(200)]
    assert sum(found) > 150


@given(st.integers(0, 10), st.integers(0, 1000))
def test_slow_first_steps_are_discarded_and_no_more(num_slow: int, seed: int) -> None:
    seconds = [2.0] * num_slow + _noise(30, 0.002, seed)
    first = first_steady_step(seconds, DEFAULT_POLICY)
    assert first is not None
    # A window of four whose median is of steady steps may hold one slow step.
    assert max(4, num_slow - 1) <= first <= max(4, num_slow)


def test_slow_steps_that_last_look_steady_and_are_told_as_drift() -> None:
    seconds = [2.0] * 14 + _noise(12, 0.002)
    assert first_steady_step(seconds, DEFAULT_POLICY) == 4
    assert "drift" in doubts(seconds, DEFAULT_POLICY)


def test_a_warm_up_ends_also_where_steps_never_are_steady() -> None:
    falling = [2.0 ** (-step / 4) for step in range(28)]
    assert first_steady_step(falling, DEFAULT_POLICY) is None
    assert not warmup_ends(falling[:27], DEFAULT_POLICY)
    assert warmup_ends(falling, DEFAULT_POLICY)
    assert num_discarded(falling, DEFAULT_POLICY) == DEFAULT_POLICY.max_warmup_steps
    assert "not_steady" in doubts(falling, DEFAULT_POLICY)
    # What comes later is measured, and ends the trial.
    longer = falling + [falling[-1]] * 40
    assert num_discarded(longer, DEFAULT_POLICY) == DEFAULT_POLICY.max_warmup_steps


def test_steps_that_were_not_steady_in_time_are_measured_as_long_as_others() -> None:
    # Each step takes 0.84 times as long as the last one.
    service = FakeService({"me": FakeSteps(seconds=0.01, noise=0.0)}, load=lambda now: max(1 - 17.3 * now, 1e-4))
    measured = measure(service, ME, replace(DEFAULT_POLICY, budget_seconds=1e9))
    assert "not_steady" in measured.flags
    assert 2 * DEFAULT_POLICY.window_steps < measured.num_steps <= DEFAULT_POLICY.max_steps


@given(TIMES)
def test_at_least_one_step_is_left(seconds: list[float]) -> None:
    assert num_discarded(seconds, DEFAULT_POLICY) < len(seconds)
    assert (num_discarded(seconds, DEFAULT_POLICY) >= 4) or len(seconds) < 5


def test_noise_asks_for_more_steps_up_to_a_maximum() -> None:
    assert not is_enough(_noise(11, 0.0), DEFAULT_POLICY)
    assert is_enough(_noise(12, 0.005), DEFAULT_POLICY)
    assert not is_enough(_noise(24, 0.1), DEFAULT_POLICY)
    assert is_enough(_noise(120, 0.1), DEFAULT_POLICY)


def test_what_seems_to_drift_is_seen_for_longer() -> None:
    falling = [1.04] * 6 + [1.0] * 6
    assert not is_noisy(falling, wide := replace(DEFAULT_POLICY, interval_share=0.1))
    assert not is_enough(falling, wide)
    assert is_enough(falling + [1.0] * 12, wide)
    assert is_enough([1.04] * 60 + [1.0] * 60, wide)


def test_the_budget_limits_a_run() -> None:
    assert next_run([1.0] * 8, 12.0, DEFAULT_POLICY) == 6
    # Four more seconds are four more steps, the one that is not counted among them.
    assert next_run([1.0] * 8, 26.0, DEFAULT_POLICY) == 3
    assert next_run([1.0] * 8, 30.0, DEFAULT_POLICY) == 0
    assert next_run([0.01] * 118, 2.0, DEFAULT_POLICY) == 2


def test_who_is_clearly_worse() -> None:
    assert is_clearly_worse(_noise(8), 0.7, DEFAULT_POLICY)
    assert not is_clearly_worse(_noise(8), 0.9, DEFAULT_POLICY)
    assert not is_clearly_worse(_noise(3), 0.1, DEFAULT_POLICY)
    assert not is_clearly_worse(_noise(8), None, DEFAULT_POLICY)
    # One slow half is not enough to be worse: the interval reaches down.
    assert not is_clearly_worse([1.0] * 4 + [2.0] * 4, 0.9, DEFAULT_POLICY)


@given(TIMES)
def test_correlation_makes_intervals_wider_and_never_leaves_the_times(seconds: list[float]) -> None:
    interval = correlated_interval(seconds)
    assert min(seconds) <= interval.low <= interval.value <= interval.high <= max(seconds)


def test_steps_that_hang_together_say_less() -> None:
    rng = np.random.default_rng(4)
    independent = (1 + 0.01 * rng.standard_normal(60)).tolist()
    waves = sorted(independent[:30]) + sorted(independent[30:], reverse=True)
    widths = [one.high - one.low for one in map(correlated_interval, (independent, waves))]
    assert widths[1] > 2 * widths[0]


def test_exposed_communication_is_never_below_nothing() -> None:
    assert exposed_seconds(0.5, 0.3) == pytest.approx(0.2)
    assert exposed_seconds(0.3, 0.5) == 0


def test_a_measurement() -> None:
    service = FakeService({"me": FakeSteps(seconds=0.5, noise=0.002, bytes_per_step=1000)}, num_ranks=3)
    measured = measure(service, ME, compute_seconds=0.4)
    assert measured.median_seconds == pytest.approx(0.5, rel=0.01)
    assert measured.num_warmup_steps == 4
    assert measured.num_ranks == 3
    assert 12 <= measured.num_steps < 24
    assert measured.exposed_seconds == pytest.approx(0.1, rel=0.05)
    assert measured.bytes_sent == (1000, 1000, 1000)
    assert measured.peak_memory_bytes == (100_000_000,) * 3
    assert measured.cpu_share == pytest.approx(0.25)
    assert measured.flags == ()
    assert service.prepared == set()


def test_ranks_that_were_through_the_first_step_early_do_not_lengthen_the_second() -> None:
    """A step takes 10 s. The second rank computes for 2 s, and waits for the first one's gradients from then on."""
    tally = Tally()
    samples = StepSamples(
        step_seconds=((10.0, 10.0, 10.0), (2.0, 18.0, 10.0)),
        cpu_share=0.1,
        bytes_sent=None,
        bytes_received=None,
        peak_memory_bytes=(1, 1),
    )
    for _ in range(2):
        tally.add(samples, begins_warmup=False)
    assert tally.seconds == (10.0,) * 4


def test_noisy_steps_are_measured_longer_and_flagged_where_that_is_not_enough() -> None:
    noisy = FakeService({"me": FakeSteps(seconds=0.01, noise=0.2)})
    measured = measure(noisy, ME)
    assert measured.num_steps == DEFAULT_POLICY.max_steps
    assert "noisy" in measured.flags


def test_busy_processors_and_drift_are_flagged() -> None:
    service = FakeService({"me": FakeSteps(seconds=1.0, cpu_share=0.7)}, load=lambda now: 1 if now < 25 else 1.3)
    policy = replace(DEFAULT_POLICY, min_steps=40, budget_seconds=60.0)
    assert measure(service, ME, policy).flags == ("busy_cpu", "drift", "noisy")


def test_what_is_clearly_worse_is_stopped_early() -> None:
    service = FakeService({"me": FakeSteps(seconds=1.0, noise=0.01)})
    measured = measure(service, ME, best_seconds=0.5)
    assert measured.flags == ("stopped_early",)
    assert measured.num_steps == 4
    assert service.prepared == set()


def test_the_budget_holds() -> None:
    service = FakeService({"me": FakeSteps(seconds=1.0, noise=0.3, warmup_factor=1.0)})
    measure(service, ME, replace(DEFAULT_POLICY, budget_seconds=20.0))
    assert 15 < service.now_seconds < 25


def test_a_failure_is_raised_and_leaves_nothing_prepared() -> None:
    service = FakeService({"me": FakeSteps(seconds=1.0, fails_at=9)})
    with pytest.raises(TrialFailed, match="rank 0: me fails here"):
        measure(service, ME)
    assert service.prepared == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"min_warmup_steps": 1},
        {"max_warmup_steps": 3},
        {"min_steps": 0},
        {"max_steps": 5},
        {"window_steps": 1},
        {"steps_per_run": 0},
        {"interval_share": 0.0},
        {"budget_seconds": 0.0},
        {"give_up_factor": 0.9},
    ],
)
def test_a_policy_that_cannot_be(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"or more|above 0"):
        replace(Policy(), **changes)  # type: ignore[arg-type]
