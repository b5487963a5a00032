"""The shipped calibration: intervals hold the share of errors that they say, on models that they were not fitted to."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from autosync.search.trust.error_belief import ErrorBelief, fitted
from autosync.search.trust.measured_spread import (
    UNMEASURED,
    Situation,
    beliefs_without_each,
    by_key,
    key_of,
    shipped_spread,
)
from autosync.search.trust.reach import fitted_reach, total_gains
from autosync.simulators.learned.rehearsal import check_rehearsal

SIMULATORS = ("learned", "timeline")
CONFIDENCES = (0.5, 0.8, 0.95)


@functools.cache
def _beliefs(simulator: str) -> dict[str, ErrorBelief]:
    return beliefs_without_each(shipped_spread().targets, key_of(simulator, "later"))


def _inside(simulator: str, situation: Situation) -> list[float]:
    """Return the share of errors inside intervals of each confidence, of beliefs that saw no other error of a model."""
    targets = shipped_spread().targets
    inside = []
    for model in sorted({one.model for one in targets}):
        belief = fitted(by_key(targets, without=model)[key_of(simulator, situation)])
        for one in targets:
            if (one.model, one.simulator, one.situation) == (model, simulator, situation):
                for number, error in enumerate(one.errors):
                    ends = [belief.after(one.errors[:number]).interval(confidence) for confidence in CONFIDENCES]
                    inside.append([low <= error <= high for low, high in ends])
    shares: list[float] = np.mean(inside, axis=0).tolist()
    return shares


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("situation", ["first", "later"])
def test_intervals_hold_on_models_that_they_were_not_fitted_to(simulator: str, situation: Situation) -> None:
    half, most, nearly_all = _inside(simulator, situation)
    assert 0.4 <= half <= 0.6
    assert 0.72 <= most <= 0.88
    assert 0.9 <= nearly_all <= 1


def test_the_shipped_errors_are_those_of_todays_simulators() -> None:
    # Otherwise measure them again: python tools/measure_spread.py
    check_rehearsal(shipped_spread().rehearsed)


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("situation", ["first", "later"])
def test_the_shipped_beliefs_are_fitted_to_the_shipped_errors(simulator: str, situation: Situation) -> None:
    found = fitted(by_key(shipped_spread().targets)[key_of(simulator, situation)])
    shipped = shipped_spread().belief(simulator, situation)
    for name in ("bias", "bias_weight", "scale", "scale_weight"):
        assert getattr(shipped, name) == pytest.approx(getattr(found, name), rel=0.05, abs=0.02)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_rounds_bring_what_is_expected_on_models_that_the_reach_was_not_fitted_to(simulator: str) -> None:
    spread = shipped_spread()
    rounds = [one for one in spread.rounds if one.simulator == simulator]
    beliefs = _beliefs(simulator)
    reaching = {
        model: replace(belief, reach=fitted_reach([one for one in rounds if one.model != model], beliefs))
        for model, belief in beliefs.items()
    }
    expected, found = total_gains(rounds, reaching)
    assert found / 1.5 <= expected <= found * 1.5
    # By the uncertainty of predictions alone, several times as much is expected.
    assert total_gains(rounds, beliefs)[0] > 2 * found


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_the_shipped_reach_is_fitted_to_the_shipped_rounds(simulator: str) -> None:
    spread = shipped_spread()
    rounds = [one for one in spread.rounds if one.simulator == simulator]
    assert spread.belief(simulator, "later").reach == pytest.approx(fitted_reach(rounds, _beliefs(simulator)), rel=0.05)
    assert spread.belief(simulator, "first").reach is None


def test_of_another_simulator_little_is_believed() -> None:
    assert shipped_spread().belief("crystal ball", "later") == UNMEASURED
