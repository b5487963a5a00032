"""An ensemble learns the error, trusts itself no further than justified, and estimates its remaining error."""

from __future__ import annotations

import numpy as np
import pytest

from autosync.simulators.learned.boosted import MIN_BLOCKS, MIN_NOISE, Boosting, boost
from autosync.simulators.learned.losses import Targets
from autosync.simulators.shared.arrays import Floats

_QUICK = Boosting(seeds=1, rounds=40, depth=2)


def _targets(log_seconds: Floats) -> Targets:
    count = len(log_seconds)
    return Targets(
        log_seconds=log_seconds,
        log_low=log_seconds - 0.01,
        log_high=log_seconds + 0.01,
        complexity=np.ones(count),
        group=np.zeros(count, dtype=np.intp),
        weight=np.ones(count),
    )


def _case(count: int, *, signal: float, noise: float, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Features, what is begun with, and the truth, which differs by one of the features."""
    rng = np.random.default_rng(seed)
    values, begin = rng.uniform(size=(count, 6)), rng.normal(size=count)
    return values, begin, begin + 0.2 + signal * (values[:, 2] > 0.5) + rng.normal(0, noise, count)


def test_what_depends_on_a_feature_is_learned() -> None:
    values, begin, truth = _case(160, signal=0.4, noise=0.01)
    seen = slice(0, 80)
    found = boost(values[seen], begin[seen], _targets(truth[seen]), np.arange(80), _QUICK)
    correction, unsure = found.correct(values[80:])
    before, after = truth[80:] - begin[80:], truth[80:] - begin[80:] - correction
    assert np.std(after) < 0.4 * np.std(before)
    assert abs(np.mean(after)) < 0.05
    assert found.share > 0.8
    assert (unsure >= found.noise).all()


def test_chance_is_not_trusted() -> None:
    values, begin, truth = _case(60, signal=0.0, noise=0.1)
    found = boost(values, begin, _targets(truth), np.arange(60), _QUICK)
    new_values, new_begin, new_truth = _case(60, signal=0.0, noise=0.1, seed=1)
    correction, unsure = found.correct(new_values)
    assert found.share < 0.5
    assert np.std(correction) < 0.04
    assert np.median(np.abs(new_truth - new_begin - correction)) < 0.12
    assert np.median(unsure) == pytest.approx(0.1, rel=0.4)


def test_with_too_few_blocks_only_the_offset_is_learned() -> None:
    values, begin, truth = _case(MIN_BLOCKS - 1, signal=0.0, noise=0.0)
    found = boost(values, begin, _targets(truth), np.arange(MIN_BLOCKS - 1), _QUICK)
    assert not found.members
    assert found.correct(values)[0] == pytest.approx(0.2)
    assert found.correct(values)[1] == pytest.approx(MIN_NOISE), "not even a perfect fit makes it sure"
    empty = boost(values[:0], begin[:0], _targets(truth[:0]), np.arange(0), _QUICK)
    assert empty.correct(values)[0] == pytest.approx(0.0)


def test_the_same_input_gives_the_same_ensemble() -> None:
    values, begin, truth = _case(40, signal=0.3, noise=0.02)
    one, again = (boost(values, begin, _targets(truth), np.arange(40), _QUICK) for _ in range(2))
    assert (one.correct(values)[0] == again.correct(values)[0]).all()
