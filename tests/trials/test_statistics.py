"""What step times say, held against what must be so for any of them."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.statistics import (
    Centre,
    Interval,
    bootstrap_interval,
    centre_of,
    correlated_interval,
    round_ratio,
)

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


def _alike(blocks: list[list[float]]) -> list[list[float]]:
    """Cut blocks to the length of the shortest."""
    return [block[: min(map(len, blocks))] for block in blocks]


CENTRES = st.sampled_from(get_args(Centre))


@given(TIMES, CENTRES)
def test_an_interval_holds_its_centre_and_lies_within_the_times(seconds: list[float], centre: Centre) -> None:
    low, high = min(seconds), max(seconds)
    for interval in (bootstrap_interval(seconds, centre=centre), correlated_interval(seconds, centre=centre)):
        assert interval.value == (np.mean(seconds) if centre == "mean" else np.median(seconds))
        # The mean of equal times may differ from them in its last digit.
        assert low * (1 - 1e-9) <= interval.low <= interval.value <= interval.high <= high * (1 + 1e-9)


@given(st.lists(TIMES.filter(lambda one: len(one) > 2), min_size=6, max_size=6).map(_alike), CENTRES)
def test_a_ratio_is_of_the_centres_of_blocks(blocks: list[list[float]], centre: Centre) -> None:
    """Blocks of one step with that centre have the same ratio."""
    others = [[1.0, 2.0, 6.0]] * len(blocks)
    single = [[float(value)] for value in centre_of(blocks, centre)]
    plain = [[float(value)] for value in centre_of(others, centre)]
    found, expected = (round_ratio(*both, centre=centre) for both in ((blocks, others), (single, plain)))
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=6, max_size=30))
def test_a_ratio_of_means_is_that_of_all_steps_and_turned_round_the_inverse(rounds: list[tuple[float, float]]) -> None:
    first, second = ([[one] for one in column] for column in zip(*rounds, strict=True))
    there, back = (round_ratio(*blocks, centre="mean") for blocks in ((first, second), (second, first)))
    assert there.value == pytest.approx(np.mean(first) / np.mean(second))
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.value <= there.high


def test_few_long_waits_and_many_short_ones_of_the_same_mean_are_seldom_told_apart() -> None:
    """In most rounds the first is faster, so a test of signs would often find a difference."""
    rng = np.random.default_rng(5)
    claims = 0
    for _ in range(200):
        waits = np.where(rng.random((24, 10)) < 0.05, 1.335, 0.035)
        blocks, others = waits * rng.normal(1, 0.02, (24, 1)), 0.1 * rng.normal(1, 0.02, (24, 10))
        interval = round_ratio(blocks.tolist(), others.tolist(), centre="mean")
        claims += not interval.low <= 1 <= interval.high
    assert claims < 200 * 0.1


def test_too_few_rounds_say_nothing() -> None:
    assert round_ratio([[2.0]] * 5, [[1.0]] * 5, centre="mean") == Interval(value=2.0, low=0.0, high=np.inf)
    assert round_ratio([[2.0]] * 6, [[1.0]] * 6, centre="mean") == Interval(value=2.0, low=2.0, high=2.0)


def test_the_same_times_make_the_same_interval() -> None:
    seconds = np.random.default_rng(3).random(20).tolist()
    assert bootstrap_interval(seconds) == bootstrap_interval(seconds)
