"""What step times say, held against what must be so for any of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.statistics import median_interval

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30)


@given(TIMES)
def test_an_interval_holds_its_median_and_lies_within_the_times(seconds: list[float]) -> None:
    interval = median_interval(seconds)
    assert interval.value == np.median(seconds)
    assert min(seconds) <= interval.low <= interval.value <= interval.high <= max(seconds)


def test_the_same_times_make_the_same_interval() -> None:
    seconds = np.random.default_rng(3).random(20).tolist()
    assert median_interval(seconds) == median_interval(seconds)
