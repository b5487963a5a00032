"""Trials are worth it while they are expected to save more of a training than they take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.search.measurement_effort import FEWEST_STEPS, NORMAL_EFFORT, QUICK_EFFORT
from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.next_trials import RUN_STEPS, SETUP_SECONDS, NextTrials, TrialWorth, trial_seconds

BELIEF = ErrorBelief(bias=0.0, bias_weight=5.0, scale=1.0, scale_weight=10.0)


def _worth(training_seconds: float) -> TrialWorth:
    return TrialWorth(effort=NORMAL_EFFORT, training_seconds=training_seconds, least_seconds=0.0)


def _expected(*seconds: float) -> list[Expectation]:
    return [Expectation(log_seconds=math.log(one), spread=0.02, situation="later") for one in seconds]


def test_a_longer_training_is_worth_more_trials() -> None:
    expected = _expected(0.1, 0.1, 0.1)
    short, long = (_worth(seconds).of(0.1, expected, BELIEF) for seconds in (60.0, 360_000.0))
    assert not short.are_worth_it
    assert long.are_worth_it
    assert short.num_trials == long.num_trials == 3
    assert short.gain == long.gain
    assert short.seconds == pytest.approx(3 * trial_seconds(NORMAL_EFFORT, 0.1))


def test_of_trials_only_the_first_may_be_worth_it() -> None:
    found = _worth(36_000.0).of(0.1, _expected(0.09, 0.3, 0.3), BELIEF)
    assert found.are_worth_it
    assert found.num_trials == 1


def test_the_time_of_another_proof_counts() -> None:
    expected = _expected(0.0995)
    due, not_due = (_worth(36_000.0).of(0.1, expected, BELIEF, proof_seconds=seconds) for seconds in (0.0, 900.0))
    assert due.are_worth_it
    assert not not_due.are_worth_it
    assert not_due.seconds == due.seconds + 900


def test_the_sentence_is_in_the_user_s_terms() -> None:
    found = NextTrials(num_trials=6, gain=0.003, seconds=130.4, is_proof_due=True, training_seconds=36_000.0)
    assert str(found) == (
        "the next 6 trials are expected to shorten a step by 0.3%, which saves 1 min 48 s of a training of 10 h; "
        "they take 2 min 10 s with another proof"
    )
    assert found.fields()["in_words"] == str(found)
    one = NextTrials(num_trials=1, gain=0.0001234, seconds=6.0, is_proof_due=False, training_seconds=3600.0)
    assert str(one).startswith("the next trial is expected to shorten a step by 0.012%, which saves 440 ms of ")


@given(seconds=st.floats(1e-4, 100.0))
def test_a_trial_takes_longer_with_longer_steps_and_with_more_effort(seconds: float) -> None:
    assert trial_seconds(NORMAL_EFFORT, seconds) >= trial_seconds(QUICK_EFFORT, seconds) > seconds


def test_trials_of_samples_of_several_steps_take_longer() -> None:
    (one,) = _expected(0.1)
    found = _worth(36_000.0).of(0.1, [replace(one, steps_each=32)], BELIEF)
    assert found.seconds == pytest.approx(trial_seconds(NORMAL_EFFORT, 0.1, 32))
    # The few samples that a trial takes at least, and those that begin its runs.
    assert found.seconds == pytest.approx(SETUP_SECONDS + (FEWEST_STEPS + RUN_STEPS) * 3.2)
