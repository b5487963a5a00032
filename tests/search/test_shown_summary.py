"""Figures of a received summary by which a report divides are more than 0."""

import pytest

from autosync.search.shown_summary import ShownInterval, ShownRatio


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_step_takes_time(value: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        ShownInterval(value=value, low=0.0, high=1.0)


@pytest.mark.parametrize(("value", "low"), [(0.0, 0.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_a_speed_is_no_multiple_of_nothing(value: float, low: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        ShownRatio(value=value, low=low, high=2.0, in_words="")
