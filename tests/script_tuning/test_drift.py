"""Steps that become slower for good are told, once, within some blocks; noise and short disturbances are not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.script_tuning.drift import BLOCK_STEPS, NUM_BLOCKS, Drift, DriftWatch

ENOUGH = BLOCK_STEPS * (NUM_BLOCKS + 1)


def _noisy(rng: random.Random, count: int, usual: float = 0.1) -> list[float]:
    """Times of steps that scatter by 5 %; every twentieth takes three times as long."""
    return [usual * rng.lognormvariate(0, 0.05) * (3 if rng.random() < 0.05 else 1) for _ in range(count)]


def _watched(watch: DriftWatch, steps: list[float], at_once: int, begin: int = 0) -> list[Drift]:
    found = []
    for first in range(0, len(steps), at_once):
        some = steps[first : first + at_once]
        found.append(watch.take(some, begin + first + len(some)))
    return [one for one in found if one is not None]


@given(seed=st.integers(0, 10**6), at_once=st.integers(1, 20))
def test_steps_that_stay_as_they_are_show_no_change(seed: int, at_once: int) -> None:
    rng = random.Random(seed)
    assert _watched(DriftWatch(_noisy(rng, 128)), _noisy(rng, 500), at_once) == []


@given(seed=st.integers(0, 10**6), factor=st.floats(1.4, 3.0), at_once=st.integers(1, 10), before=st.integers(0, 90))
def test_a_lasting_change_is_told_once_within_fifty_steps(seed: int, factor: float, at_once: int, before: int) -> None:
    rng = random.Random(seed)
    watch = DriftWatch(_noisy(rng, 128))
    steps = _noisy(rng, before) + _noisy(rng, 200, 0.1 * factor)
    (drift,) = _watched(watch, steps, at_once)
    assert drift.is_slower
    assert before < drift.num_steps <= before + 50
    assert drift.before_seconds == pytest.approx(0.1, rel=0.1)
    assert drift.after_seconds == pytest.approx(0.1 * factor, rel=0.1)


def test_a_short_disturbance_is_no_change() -> None:
    watch = DriftWatch([0.1] * 32)
    steps = [0.1] * 40 + [0.3] * (BLOCK_STEPS * (NUM_BLOCKS - 1)) + [0.1] * 40
    assert _watched(watch, steps, 4) == []


def test_steps_that_are_as_fast_again_are_told() -> None:
    watch = DriftWatch([0.1] * 32)
    slower, faster = _watched(watch, [0.2] * ENOUGH + [0.1] * ENOUGH, BLOCK_STEPS, begin=1000)
    assert str(slower) == "step 1024: steps have become slower, from 100 ms to 200 ms (2.00 times as long)"
    assert str(faster) == "step 1056: steps have become faster again, from 200 ms to 100 ms"
    assert faster.fields() == {"num_steps": 1056, "before_seconds": 0.2, "after_seconds": 0.1}


def test_a_training_that_is_faster_than_its_proof_is_held_against_itself() -> None:
    watch = DriftWatch([0.2] * 32)
    assert _watched(watch, [0.1] * ENOUGH, BLOCK_STEPS) == []
    (drift,) = _watched(watch, [0.2] * ENOUGH, BLOCK_STEPS)
    assert drift.before_seconds == 0.1


def test_outliers_of_the_proof_hide_no_change() -> None:
    watch = DriftWatch([0.1] * 120 + [0.5] * BLOCK_STEPS)
    assert len(_watched(watch, [0.2] * ENOUGH, BLOCK_STEPS)) == 1


def test_without_a_proof_the_first_steps_are_the_usual_ones() -> None:
    watch = DriftWatch([0.1] * (BLOCK_STEPS - 1))
    (drift,) = _watched(watch, [0.2] * ENOUGH + [0.3] * ENOUGH, BLOCK_STEPS)
    assert drift.before_seconds == 0.2
