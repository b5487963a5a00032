"""What step times say, held against what must be so for any of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.statistics import median_interval, ratio_interval, slowest_rank

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


@given(TIMES)
def test_an_interval_holds_its_median_and_lies_within_the_times(seconds: list[float]) -> None:
    interval = median_interval(seconds)
    assert interval.value == np.median(seconds)
    assert min(seconds) <= interval.low <= interval.value <= interval.high <= max(seconds)


@given(TIMES)
def test_equal_times_differ_by_nothing(seconds: list[float]) -> None:
    interval = ratio_interval(seconds, seconds)
    assert interval.value == 1
    assert interval.low <= 1 <= interval.high


@given(st.lists(st.floats(1e-6, 1e3), min_size=6, max_size=6), st.floats(0.1, 10))
def test_blocks_are_resampled_together(seconds: list[float], factor: float) -> None:
    """Whatever drifts from block to block drifts for both: what is so in every block is certain."""
    interval = ratio_interval([factor * one for one in seconds], seconds, num_blocks=3)
    assert interval.low == pytest.approx(factor)
    assert interval.high == pytest.approx(factor)


def test_blocks_that_disagree_make_a_wide_interval() -> None:
    first = [1.0] * 6 + [3.0] * 6
    second = [2.0] * 12
    interval = ratio_interval(first, second, num_blocks=12)
    assert interval.low < 1 < interval.high


@given(TIMES, TIMES)
def test_a_ratio_turned_round_is_its_inverse(first: list[float], second: list[float]) -> None:
    there, back = ratio_interval(first, second), ratio_interval(second, first)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low <= there.value <= there.high


def test_what_is_twice_as_fast_is_found_to_be() -> None:
    rng = np.random.default_rng(1)
    slow, fast = 2 + 0.1 * rng.random(72), 1 + 0.05 * rng.random(72)
    interval = ratio_interval(slow.tolist(), fast.tolist(), num_blocks=12)
    assert 1.9 < interval.low < interval.value < interval.high < 2.1


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Equal contestants, 200 times: the whole interval lies above 1 in about one of forty."""
    rng = np.random.default_rng(2)
    wins = 0
    for _ in range(200):
        drift = rng.normal(1, 0.1, 12).repeat(6)
        first, second = (drift + rng.normal(0, 0.03, 72) for _ in range(2))
        wins += ratio_interval(first.tolist(), second.tolist(), num_blocks=12).low > 1
    assert wins <= 16


@given(st.lists(TIMES, min_size=1, max_size=4))
def test_a_step_lasts_as_long_as_on_its_slowest_rank(ranks: list[list[float]]) -> None:
    shortest = min(map(len, ranks))
    even = [seconds[:shortest] for seconds in ranks]
    slowest = slowest_rank(even)
    assert len(slowest) == shortest
    assert all(slowest[step] == max(seconds[step] for seconds in even) for step in range(shortest))


def test_the_same_times_make_the_same_interval() -> None:
    seconds = np.random.default_rng(3).random(20).tolist()
    assert median_interval(seconds) == median_interval(seconds)
