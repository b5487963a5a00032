"""What step times say, held against what must be so for any of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.statistics import median_interval, slowest_rank

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


@given(TIMES)
def test_an_interval_holds_its_median_and_lies_within_the_times(seconds: list[float]) -> None:
    interval = median_interval(seconds)
    assert interval.value == np.median(seconds)
    assert min(seconds) <= interval.low <= interval.value <= interval.high <= max(seconds)


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
