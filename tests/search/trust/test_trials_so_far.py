"""A search that finds less than was expected of its trials expects less of what follows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.trials_so_far import PastTrial, belief_after

BELIEF = ErrorBelief(bias=0.0, bias_weight=10.0, scale=1.0, scale_weight=10.0, reach=0.01)
_trials = st.lists(st.tuples(st.floats(-0.05, 0.1), st.floats(0.005, 0.1), st.floats(-0.1, 0.2)), max_size=8)


def tried(*trials: tuple[float, float, float]) -> list[PastTrial]:
    """Trials by the logarithms of their predicted times, the spreads of these, and their measured logarithms."""
    return [
        PastTrial(expected=Expectation(log_seconds=log, spread=spread, situation="later"), log_seconds=found)
        for log, spread, found in trials
    ]


def reach_after(*trials: tuple[float, float, float], least_gain: float = 0.0) -> float:
    reach = belief_after(BELIEF, 0.0, tried(*trials), least_gain=least_gain).reach
    assert reach is not None
    return reach


def test_trials_that_bring_nothing_shorten_the_reach_one_by_one() -> None:
    reaches = [reach_after(*[(-0.01, 0.03, 0.0)] * count) for count in range(6)]
    assert reaches == sorted(reaches, reverse=True)
    assert reaches[0] == 0.01
    assert 0.002 < reaches[-1] < 0.008


def test_trials_that_bring_more_than_expected_lengthen_it() -> None:
    assert reach_after((-0.01, 0.03, -0.03)) > 0.02
    # The same trial after it brings nothing more.
    assert reach_after((-0.01, 0.03, -0.03), (-0.01, 0.03, -0.03)) < reach_after((-0.01, 0.03, -0.03))


def test_gains_that_no_proof_sees_count_as_none() -> None:
    assert reach_after((-0.01, 0.03, -0.004), least_gain=0.005) < 0.01 < reach_after((-0.01, 0.03, -0.012))


def test_a_trial_of_which_nothing_was_expected_changes_nothing() -> None:
    assert reach_after((0.3, 0.01, 0.3)) == pytest.approx(0.01, rel=1e-6)


@given(_trials)
def test_errors_count_where_predictions_were_near_the_best_of_their_time(
    trials: list[tuple[float, float, float]],
) -> None:
    best, errors = 0.0, []
    for log, spread, found in trials:
        if log <= best + 0.05:
            errors.append((found - log) / spread)
        best = min(best, found)
    assert replace(belief_after(BELIEF, 0.0, tried(*trials)), reach=None) == replace(BELIEF.after(errors), reach=None)


@given(_trials)
def test_the_reach_stays_a_share(trials: list[tuple[float, float, float]]) -> None:
    gains = sum(max(-found, 0.0) for *_, found in trials)
    assert 0 < reach_after(*trials) <= 0.01 + gains


def test_a_belief_without_a_reach_gets_none() -> None:
    assert belief_after(replace(BELIEF, reach=None), 0.0, tried((0.0, 0.1, 0.1))).reach is None


def test_nothing_shorter_than_the_bound_was_expected() -> None:
    free, bounded = (
        belief_after(BELIEF, 0.0, tried((-0.01, 0.03, 0.0)), least_seconds=least) for least in (0.0, math.exp(-0.003))
    )
    assert free.reach is not None
    assert bounded.reach is not None
    assert free.reach < bounded.reach < 0.01
