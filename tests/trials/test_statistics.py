"""What step times say, held against what must be so for any of them."""

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autosync.trials.statistics import Centre, bootstrap_interval, centre_of, correlated_interval, round_ratio

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
    assert round_ratio(blocks, others, centre=centre) == round_ratio(single, plain)


def test_the_same_times_make_the_same_interval() -> None:
    seconds = np.random.default_rng(3).random(20).tolist()
    assert bootstrap_interval(seconds) == bootstrap_interval(seconds)
