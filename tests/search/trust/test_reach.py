"""The reach of replayed searches: rounds are expected to bring, together, what they brought."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.measured_spread import RoundsOfTarget
from autosync.search.trust.reach import LEAST_REACH, MOST_REACH, fitted_reach, gains_of, total_gains

BELIEF = ErrorBelief(bias=0.0, bias_weight=10.0, scale=1.0, scale_weight=10.0)
BELIEFS = {"a": BELIEF, "b": BELIEF}
Trial = tuple[float, float, float]


def searched(*rounds: tuple[Trial, ...], model: str = "a") -> RoundsOfTarget:
    return RoundsOfTarget(simulator="s", model=model, cluster="c", rounds=rounds)


def test_a_gain_is_what_the_fastest_of_a_round_brings() -> None:
    one = searched(((0.02, 0.03, 0.05), (0.03, 0.03, -0.01)), ((0.0, 0.03, -0.005),), ((0.0, 0.03, -0.04),))
    found = [each.found for each in gains_of(one, BELIEF)]
    assert found == pytest.approx([1 - math.exp(-0.01), 0.0, 1 - math.exp(-0.03)])


def test_only_errors_near_the_best_change_the_belief() -> None:
    later = ((0.01, 0.03, 0.02),)
    near, far = (searched(((offset, 0.03, offset + 0.015),), later) for offset in (0.04, 0.06))
    unchanged = searched((), later)
    expected = [[each.curve.mean(None) for each in gains_of(one, BELIEF)][1] for one in (near, far, unchanged)]
    assert expected[0] < expected[1] == expected[2]


@given(st.floats(0.002, 0.03), st.floats(-0.02, 0.05))
def test_the_fitted_reach_expects_what_was_found(drop: float, offset: float) -> None:
    targets = [searched(((offset, 0.03, -drop), (0.02, 0.03, 0.01)), model=model) for model in "ab"]
    reach = fitted_reach(targets, BELIEFS)
    expected, found = total_gains(targets, {name: replace(one, reach=reach) for name, one in BELIEFS.items()})
    assert LEAST_REACH <= reach <= MOST_REACH
    if LEAST_REACH * 1.01 < reach < MOST_REACH / 1.01:
        assert expected == pytest.approx(found, rel=1e-3)


def test_where_nothing_was_found_little_is_believed_to_exist() -> None:
    assert fitted_reach([searched(((0.0, 0.03, 0.02),))], BELIEFS) == pytest.approx(LEAST_REACH, rel=1e-3)
