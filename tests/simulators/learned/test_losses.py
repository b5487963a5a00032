"""Losses push in the right direction, and hardly anywhere for ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.simulators.learned.losses import ANCHOR, LOSSES, LossName, Targets, loss_of
from autosync.simulators.shared.arrays import Floats


def _targets(seconds: list[float], *, width: float = 0.01, complexity: list[float] | None = None) -> Targets:
    log_seconds = np.log(np.array(seconds))
    count = len(seconds)
    return Targets(
        log_seconds=log_seconds,
        log_low=log_seconds - width,
        log_high=log_seconds + width,
        complexity=np.array(complexity or [1.0] * count),
        group=np.zeros(count, dtype=np.intp),
        weight=np.ones(count),
    )


def _without_anchor(gradient: Floats, predicted: Floats, targets: Targets) -> Floats:
    return gradient - ANCHOR * np.clip(predicted - targets.log_seconds, -0.3, 0.3)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=20)
@given(seconds=st.lists(st.floats(0.1, 10), min_size=2, max_size=12), seed=st.integers(0, 9))
def test_descending_brings_predictions_into_order(name: LossName, seconds: list[float], seed: int) -> None:
    targets = _targets(seconds)
    predicted = np.random.default_rng(seed).normal(size=len(seconds))
    loss = loss_of(name, targets, seed=0)
    for _ in range(600):
        gradient, second = loss.gradients(predicted)
        assert np.isfinite(gradient).all()
        assert (second >= 0).all()
        predicted = predicted - 0.3 * gradient / (second + 0.05)
    errors = predicted - targets.log_seconds
    # Shares of a list say little of those that are far from the fastest.
    assert np.max(np.abs(errors - np.median(errors))) < (0.5 if name == "listwise" else 0.15)


def test_a_pair_in_the_wrong_order_is_turned_round() -> None:
    targets = _targets([1.0, 2.0])
    predicted = np.array([1.0, 0.0])
    gradient, _ = loss_of("pairwise", targets, seed=0).gradients(predicted)
    pushed = _without_anchor(gradient, predicted, targets)
    assert pushed[0] > 0 > pushed[1]
    assert pushed.sum() == pytest.approx(0)


def test_a_pair_in_the_right_order_is_left_alone() -> None:
    targets = _targets([1.0, 2.0])
    predicted = targets.log_seconds.copy()
    gradient, _ = loss_of("pairwise", targets, seed=0).gradients(predicted)
    assert np.abs(gradient).max() < 1e-6


def test_of_a_tie_the_simpler_one_goes_first_but_by_little() -> None:
    tie = _targets([1.001, 1.0], complexity=[1.0, 9.0])
    clear = _targets([1.0, 1.1])
    predicted = np.zeros(2)
    pushed = _without_anchor(loss_of("pairwise", tie, seed=0).gradients(predicted)[0], predicted, tie)
    assert pushed[0] > 0 > pushed[1], "the loss falls where the simpler one is predicted to be faster: seconds sink"
    firmly = _without_anchor(loss_of("pairwise", clear, seed=0).gradients(predicted)[0], predicted, clear)
    assert np.abs(firmly).max() > 10 * np.abs(pushed).max()


def test_without_ties_whatever_took_longer_is_slower() -> None:
    tie = _targets([1.001, 1.0], complexity=[1.0, 9.0])
    predicted = np.zeros(2)
    blind = loss_of("pairwise", tie, seed=0, knows_ties=False).gradients(predicted)[0]
    pushed = _without_anchor(blind, predicted, tie)
    assert pushed[1] > 0 > pushed[0]


@pytest.mark.parametrize("name", ["pairwise", "listwise"])
def test_groups_are_not_compared(name: LossName) -> None:
    targets = _targets([1.0, 2.0, 10.0, 20.0])._replace(group=np.array([0, 0, 1, 1]))
    both = loss_of(name, targets, seed=0)
    predicted = np.array([0.3, 0.2, 5.0, 4.0])
    moved = predicted + np.array([0.0, 0.0, 7.0, 7.0])
    first, second = (_without_anchor(both.gradients(one)[0], one, targets) for one in (predicted, moved))
    assert first == pytest.approx(second)


def test_the_same_seed_draws_the_same_pairs_of_a_large_group() -> None:
    rng = np.random.default_rng(0)
    targets = _targets(rng.uniform(1, 2, 200).tolist())
    predicted = rng.normal(size=200)
    one, again, other = (loss_of("pairwise", targets, seed=seed).gradients(predicted)[0] for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one != other).any()
