"""Times whole passes of a task, without marks inside them, and fits recorded steps to these times.

A GPU works while its host prepares what comes next. Between two modules, hooks and marks take the host longer than a
launch, and the GPU of a small model then waits for them. Such a model also waits while the graph of its forward pass is
read. So on a GPU, recorded steps say how a pass divides into segments, and whole passes say how long it takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosync.specs.profile.assemble import ProfiledStep
from autosync.specs.profile.clock import Clock
from autosync.specs.profile.recorder import Microstep

NUM_STEPS = 20
WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """The seconds of the passes of one step: all its microsteps, and its update."""

    forward: float
    backward: float
    update: float


def time_passes(step: Callable[[Callable[[], None]], None], clock: Clock) -> PassSeconds:
    """Return the medians of steps that run one after the other.

    `step` runs a step and calls the function that it gets before each forward pass, between forward and backward pass,
    after each backward pass, and after the update.
    """
    taken: list[list[Any]] = []
    for _ in range(WARM_UP_STEPS + NUM_STEPS):
        marks: list[Any] = []
        step(lambda marks=marks: marks.append(clock.mark()))  # type: ignore[misc]
        taken.append(marks)
    seconds = [clock.seconds(marks) for marks in taken[WARM_UP_STEPS:]]
    # Three marks a microstep make three intervals: two passes, and the time until the next microstep or the update.
    return PassSeconds(
        forward=statistics.median(sum(one[0::3]) for one in seconds),
        backward=statistics.median(sum(one[1::3]) for one in seconds),
        update=statistics.median(one[-1] for one in seconds),
    )


def fitted(steps: Sequence[ProfiledStep], passes: PassSeconds) -> list[ProfiledStep]:
    """Return the steps with times that agree, in the median, with those of whole passes."""
    forward = _factor(passes.forward, [_sum(one, "forward_seconds") for one in steps])
    backward = _factor(passes.backward, [_sum(one, "backward_seconds") for one in steps])
    update = _factor(passes.update, [one.update_seconds for one in steps])

    def scaled(microstep: Microstep) -> Microstep:
        return replace(
            microstep,
            forward_seconds=tuple(forward * seconds for seconds in microstep.forward_seconds),
            backward_seconds=tuple(backward * seconds for seconds in microstep.backward_seconds),
        )

    return [
        replace(
            one,
            microsteps=tuple(scaled(microstep) for microstep in one.microsteps),
            update_seconds=update * one.update_seconds,
        )
        for one in steps
    ]


def _sum(step: ProfiledStep, passes: str) -> float:
    return sum(sum(getattr(microstep, passes)) for microstep in step.microsteps)


def _factor(wanted: float, found: Sequence[float]) -> float:
    middle = statistics.median(found)
    return wanted / middle if middle > 0 else 1.0
