"""Recorded steps keep their proportions and get the times of whole passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from autosync.specs.profile.assemble import ProfiledStep
from autosync.specs.profile.recorder import Microstep
from autosync.specs.profile.whole_passes import NUM_STEPS, WARM_UP_STEPS, PassSeconds, fitted, time_passes


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, marks: list[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]


def test_passes_are_timed_over_all_microsteps() -> None:
    clock, taken = HandClock(), 0

    def step(mark: Callable[[], None]) -> None:
        nonlocal taken
        taken += 1
        slowly = 9.0 if taken <= WARM_UP_STEPS else 1.0
        for _ in range(2):
            for seconds in (0.5, 1.0 * slowly, 2.0 * slowly):
                clock.now += seconds
                mark()
        clock.now += 0.25
        mark()

    found = time_passes(step, clock)
    assert taken == WARM_UP_STEPS + NUM_STEPS
    assert found == PassSeconds(forward=2.0, backward=4.0, update=0.25)


def recorded(scale: float) -> ProfiledStep:
    microstep = Microstep(
        calls=(), forward_seconds=(scale, 3 * scale), ready=(), backward_seconds=(4 * scale, 4 * scale), uses={}
    )
    return ProfiledStep(microsteps=(microstep, microstep), update_seconds=scale, touched_rows={"table": 3})


def test_the_median_step_gets_the_times_of_whole_passes() -> None:
    steps = fitted([recorded(1.0), recorded(2.0), recorded(4.0)], PassSeconds(forward=8.0, backward=8.0, update=0.5))
    middle = steps[1].microsteps[0]
    assert middle.forward_seconds == (1.0, 3.0)
    assert middle.backward_seconds == (2.0, 2.0)
    assert steps[1].update_seconds == 0.5
    assert [one.seconds for one in steps] == pytest.approx([8.25, 16.5, 33.0])
    assert steps[0].touched_rows == {"table": 3}


def test_an_update_without_time_stays_so() -> None:
    step = ProfiledStep(microsteps=(), update_seconds=0.0, touched_rows={})
    assert fitted([step], PassSeconds(forward=0.0, backward=0.0, update=1.0)) == [step]
