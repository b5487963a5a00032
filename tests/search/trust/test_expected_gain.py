"""The gain that trials are expected to bring is that of a simulation of many such trials."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.bound_terms import holds
from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.expected_gain import LEAST_SHARE, expected_gain
from autosync.simulators.learned.trials import NOISE

BELIEF = ErrorBelief(bias=0.3, bias_weight=3.0, scale=0.8, scale_weight=8.0)
_expectations = st.lists(st.tuples(st.floats(0.05, 0.3), st.floats(0.005, 0.2)), min_size=1, max_size=6)


def _expected(*pairs: tuple[float, float]) -> list[Expectation]:
    return [Expectation(log_seconds=math.log(seconds), spread=spread, situation="later") for seconds, spread in pairs]


@pytest.mark.parametrize("least", [0.0, 0.005, 0.03])
def test_it_is_the_mean_gain_of_many_trials(least: float) -> None:
    expected = _expected((0.1, 0.03), (0.102, 0.05), (0.095, 0.01))
    rng, count = np.random.default_rng(1), 200_000
    bias = BELIEF.bias + BELIEF.scale / math.sqrt(BELIEF.bias_weight) * rng.normal(size=count)
    spreads = np.array([[one.spread for one in expected]])
    scales = np.sqrt(np.maximum((BELIEF.scale * spreads) ** 2 - NOISE**2, (LEAST_SHARE * BELIEF.scale * spreads) ** 2))
    errors = bias[:, None] * spreads + scales * rng.standard_t(BELIEF.scale_weight, size=(count, 3))
    seconds = np.exp(np.array([one.log_seconds for one in expected]) + errors)
    gains = np.maximum(1 - seconds.min(axis=1) / 0.1, 0)
    gains[gains < least] = 0
    assert expected_gain(0.1, expected, BELIEF, least_gain=least) == pytest.approx(gains.mean(), rel=0.02)


@given(pairs=_expectations)
def test_more_trials_bring_more_and_none_bring_more_than_all(pairs: list[tuple[float, float]]) -> None:
    gains = [expected_gain(0.1, _expected(*pairs[:number]), BELIEF) for number in range(len(pairs) + 1)]
    assert gains[0] == 0
    assert gains == sorted(gains)
    assert gains[-1] <= 1


@given(pairs=_expectations, least=st.floats(0.0, 0.2))
def test_no_gain_is_expected_beyond_the_bound(pairs: list[tuple[float, float]], least: float) -> None:
    gain = expected_gain(0.1, _expected(*pairs), BELIEF, least_seconds=least)
    assert 0 <= gain <= (max(1 - least / 0.1, 0) if holds(least, 0.1) else 1.0) + 1e-12
    assert gain <= expected_gain(0.1, _expected(*pairs), BELIEF) + 5e-3


def test_a_bound_that_is_refuted_says_nothing() -> None:
    expected = _expected((0.08, 0.05))
    assert expected_gain(0.1, expected, BELIEF, least_seconds=0.2) == expected_gain(0.1, expected, BELIEF) > 0


def test_luck_in_a_measurement_is_no_gain() -> None:
    sure = ErrorBelief(bias=0.0, bias_weight=50.0, scale=1.0, scale_weight=50.0)
    noise_alone = expected_gain(0.1, _expected((0.1, NOISE)), sure)
    # Without noise, the mean of the better half of a normal distribution: 0.4 standard deviations.
    assert noise_alone < 0.2 * NOISE
    assert expected_gain(0.1, _expected((0.1, 10 * NOISE)), sure) > 3 * NOISE


@given(pairs=_expectations, reach=st.floats(1e-3, 0.05))
def test_no_more_is_expected_than_is_believed_to_exist(pairs: list[tuple[float, float]], reach: float) -> None:
    reaching = replace(BELIEF, reach=reach)
    gain = expected_gain(0.1, _expected(*pairs), reaching)
    assert gain <= reach
    assert gain <= expected_gain(0.1, _expected(*pairs), BELIEF)
    assert gain <= expected_gain(0.1, _expected(*pairs), replace(BELIEF, reach=2 * reach)) + 1e-12


def test_certain_trials_find_what_exists() -> None:
    # Without uncertainty, the gain is the mean of what exists, up to the steps of the integral.
    sure = ErrorBelief(bias=0.0, bias_weight=50.0, scale=1.0, scale_weight=50.0, reach=0.01)
    assert expected_gain(0.1, _expected((0.01, 0.02)), sure) == pytest.approx(0.01, rel=0.02)


def test_uncertain_strategies_bring_more_than_certain_ones() -> None:
    certain, uncertain = (expected_gain(0.1, _expected((0.11, spread)), BELIEF) for spread in (0.01, 0.1))
    assert certain < 1e-4 < uncertain
