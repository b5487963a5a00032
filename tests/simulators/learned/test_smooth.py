"""The remaining errors of trees are smoothed over features."""

from __future__ import annotations

import numpy as np
import pytest

from autosync.simulators.learned.smooth import Smoothed, Standard


def test_a_smooth_error_is_found_between_trials() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-1.0, 1.0, (120, 2))
    left = 0.1 * values[:, 0] + 0.05 * np.sin(3 * values[:, 1])
    smoothed = Smoothed.of(values[:60], left[:60])
    rest = left[60:] - smoothed.correct(values[60:])
    assert np.abs(rest).mean() < 0.2 * np.abs(left[60:]).mean()


def test_units_of_features_do_not_matter_and_neither_does_what_all_trials_have_in_common() -> None:
    rng = np.random.default_rng(1)
    values, left = rng.normal(size=(40, 3)), 0.05 * rng.normal(size=40)
    others = rng.normal(size=(20, 3))
    plain = Smoothed.of(values, left).correct(others)
    in_units = Smoothed.of(values * [1e6, 1.0, 1e-3] + 7.0, left).correct(others * [1e6, 1.0, 1e-3] + 7.0)
    assert in_units == pytest.approx(plain, abs=1e-6)
    with_common = Smoothed.of(np.c_[values, np.full(40, 3.0)], left).correct(np.c_[others, rng.normal(size=20)])
    assert with_common == pytest.approx(plain)


def test_however_far_away_a_strategy_is_its_vector_is_not() -> None:
    standard = Standard.of(np.array([[0.0], [1.0]]))
    far, farther = standard.vectors(np.array([[100.0], [1e9]]))
    assert far == pytest.approx(farther)


def test_trials_that_are_all_alike_are_corrected_by_what_they_have_in_common() -> None:
    smoothed = Smoothed.of(np.ones((5, 4)), np.full(5, 0.2))
    assert smoothed.correct(np.zeros((2, 4))) == pytest.approx([0.2, 0.2])
