"""How long a profile goes on, and what it says of itself: the rules, with times and loads that a test gives."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.profile.machine_load import UNKNOWN, MachineLoad
from autosync.specs.profile.steadiness import (
    LEAST_SECONDS,
    LEAST_STEPS,
    MOST_SECONDS,
    MOST_STEPS,
    STEADY_WIDTH,
    StoppingRule,
    is_steady,
    median_interval,
    profiled,
)

STEADY = [1.0, 1.01, 1.02, 1.0, 1.03, 1.01]
UNSTEADY = [0.019, 0.141, 0.392, 0.14, 0.2, 0.15]


@pytest.mark.parametrize(("number", "first", "last"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61)])
def test_the_interval_is_that_of_the_tables(number: int, first: int, last: int) -> None:
    """The ranks that tables of the sign test give for 95 %."""
    assert median_interval(list(range(number, 0, -1))) == (first, last)


def test_too_few_have_no_interval() -> None:
    assert [median_interval([1.0] * number) is None for number in range(8)] == [True] * 6 + [False] * 2
    assert LEAST_STEPS == 6


@given(st.integers(6, 300))
def test_it_is_as_narrow_as_95_percent_allow(number: int) -> None:
    found = median_interval(list(range(number)))
    assert found is not None

    def outside(place: int) -> float:
        return 2 * sum(math.comb(number, below) for below in range(place + 1)) / 2**number

    assert outside(int(found[0])) <= 0.05
    assert outside(int(found[0]) + 1) > 0.05


def test_steady_is_what_has_a_narrow_interval() -> None:
    assert is_steady(STEADY)
    assert not is_steady(UNSTEADY)
    assert not is_steady([1.0] * 5), "nobody knows"
    assert is_steady([1.0] * 5 + [1.0 + 0.99 * STEADY_WIDTH])
    assert not is_steady([1.0] * 5 + [1.0 + 1.01 * STEADY_WIDTH])


def test_steps_go_on_until_they_are_steady_and_within_limits() -> None:
    pace = StoppingRule(num_steps=None)
    assert pace.goes_on([], 0.0)
    assert pace.goes_on([1.0] * (LEAST_STEPS - 1), 100.0), "without an interval there is nothing to say"
    assert not pace.goes_on(STEADY, LEAST_SECONDS)
    assert pace.goes_on(STEADY, 0.9 * LEAST_SECONDS), "the machine is looked at for a while"
    assert pace.goes_on(UNSTEADY, LEAST_SECONDS)
    assert not pace.goes_on(UNSTEADY, MOST_SECONDS)
    assert not pace.goes_on([1.0, 2.0] * (MOST_STEPS // 2), LEAST_SECONDS)


def test_so_many_as_are_asked_for_are_exactly_so_many() -> None:
    pace = StoppingRule(num_steps=3)
    assert [pace.goes_on([1.0] * number, 100.0) for number in range(5)] == [True, True, True, False, False]


def test_a_profile_says_what_speaks_against_it() -> None:
    idle, busy = MachineLoad(other_cpu_share=0.01, waited_share=0.0), MachineLoad(other_cpu_share=0.4, waited_share=0.3)
    steady, unsteady = profiled(STEADY, 1.01, idle), profiled(UNSTEADY, 0.145, idle)
    assert (steady.flags, unsteady.flags) == ((), ("unsteady",))
    assert (unsteady.low_seconds, unsteady.high_seconds) == (0.019, 0.392)
    assert unsteady.num_steps == 6
    found = profiled(UNSTEADY, 0.145, busy)
    assert found.flags == ("busy_machine", "unsteady")
    assert (found.other_cpu_share, found.waited_share) == (0.4, 0.3)
    assert profiled(STEADY, 1.01, UNKNOWN).flags == ()
    few = profiled(STEADY[:3], 1.01, busy)
    assert (few.low_seconds, few.high_seconds, few.flags) == (None, None, ("busy_machine",))


def test_the_step_is_within_its_interval() -> None:
    """A step is put together of medians of its parts, which may be a little off."""
    assert profiled([1.0] * 8, 0.99, UNKNOWN).low_seconds == 0.99
    assert profiled([1.0] * 8, 1.02, UNKNOWN).high_seconds == 1.02


@given(st.floats(min_value=1e-6, max_value=10), st.floats(min_value=0.5, max_value=2))
def test_rounding_keeps_the_step_within_its_interval(taken: float, factor: float) -> None:
    found = profiled([taken] * 8, taken * factor, UNKNOWN)
    assert found.low_seconds is not None
    assert found.high_seconds is not None
    assert found.low_seconds <= min(taken, taken * factor)
    assert max(taken, taken * factor) <= found.high_seconds
    assert found.low_seconds == pytest.approx(min(taken, taken * factor), rel=1e-3)
    assert found.high_seconds == pytest.approx(max(taken, taken * factor), rel=1e-3)


@pytest.mark.parametrize(
    ("others", "waited", "is_busy"),
    [
        (0.0, 0.0, False),
        (0.16, 0.0, True),
        (0.14, 0.09, False),
        (0.03, 0.11, True),
        # Too many threads of one's own wait for one another, whoever else there is.
        (0.01, 0.5, False),
        (None, 0.11, True),
        (None, None, False),
        (0.5, None, True),
    ],
)
def test_when_a_machine_is_busy(others: float | None, waited: float | None, is_busy: bool) -> None:
    assert MachineLoad(other_cpu_share=others, waited_share=waited).is_busy == is_busy


def test_widths_shrink_with_the_number_of_steps() -> None:
    spread = [1.0 + 0.01 * (7 * number % 50) for number in range(50)]
    widths = [high - low for low, high in filter(None, (median_interval(spread[:n]) for n in (6, 12, 25, 50)))]
    assert all(later <= earlier for earlier, later in pairwise(widths))
