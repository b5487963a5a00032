"""Predictions are corrected by the measurements of similar strategies."""

from __future__ import annotations

import numpy as np
import pytest

from autosync.simulators.learned.residuals import UNMEASURED_SPREAD, residuals_of


def test_corrections_are_those_measured_and_fade_with_distance() -> None:
    vectors = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0], [5.0, 5.0], [20.0, 0.0], [0.0, 20.0]])
    errors = np.array([0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    residuals = residuals_of(vectors, errors)
    corrections, spreads = residuals.correct(np.array([[0.0, 0.0], [0.1, 0.0], [1000.0, 0.0]]))
    assert corrections[0] == pytest.approx(0.3, abs=0.02)
    assert corrections[0] >= corrections[1] > 0.2
    assert corrections[2] == pytest.approx(0.1, abs=0.02)
    assert spreads[0] < spreads[1] < spreads[2]


def test_without_measurements_nothing_is_corrected() -> None:
    corrections, spreads = residuals_of(np.zeros((0, 3)), np.zeros(0)).correct(np.ones((4, 3)))
    assert corrections.tolist() == [0.0] * 4
    assert spreads.tolist() == pytest.approx([UNMEASURED_SPREAD] * 4)


def test_believing_changes_no_mean_and_lowers_the_spread_nearby() -> None:
    residuals = residuals_of(np.array([[0.0], [4.0]]), np.array([0.1, 0.2]))
    points = np.array([[1.0], [2.0], [50.0]])
    before, spreads = residuals.correct(points)
    after, lower = residuals.believing(points[1]).correct(points)
    assert np.allclose(before, after, atol=1e-6)
    assert lower[1] < 0.5 * spreads[1]
    assert lower[2] == pytest.approx(spreads[2], rel=1e-6)
