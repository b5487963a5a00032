"""Decides how many steps a profile measures: a given number, or as many as it takes until their time is steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

from autosync.specs.profile.machine_load import MachineLoad
from autosync.specs.profiled import Profiled

CONFIDENCE = 0.95
STEADY_WIDTH = 0.1
"""The time of a step is steady if the interval of its median is no wider than this share of the median."""
LEAST_STEPS = 6
"""The fewest steps that give an interval: in 1 of 16 cases, five steps would all be on one side of the median."""
MOST_STEPS = 200
LEAST_SECONDS = 0.25
"""The shortest time in which the load of a machine can be measured."""
MOST_SECONDS = 5.0


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median by order statistics, for any distribution; None for too few values."""
    ordered, number = sorted(values), len(values)
    # The median lies below the k-th smallest with the chance that fewer than k of all values are below it.
    outside, place = 0.0, -1
    for below in range(number // 2):
        outside += math.comb(number, below) / 2**number
        if 2 * outside > 1 - CONFIDENCE:
            break
        place = below
    return (ordered[place], ordered[-1 - place]) if place >= 0 else None


def is_steady(values: Sequence[float]) -> bool:
    """Whether the interval of the median is narrow enough."""
    found = median_interval(values)
    return found is not None and found[1] - found[0] <= STEADY_WIDTH * statistics.median(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingRule:
    """The rule for when to stop: after exactly `num_steps` steps, or if that is None, once their time is steady.

    Without `num_steps`, the limits on steps and seconds of this module hold too.
    """

    num_steps: int | None

    def goes_on(self, taken: Sequence[float], elapsed_seconds: float) -> bool:
        """Whether to measure one more step, given the times so far and the time since the first step began."""
        if self.num_steps is not None:
            return len(taken) < self.num_steps
        if len(taken) < LEAST_STEPS:
            return True
        if len(taken) >= MOST_STEPS or elapsed_seconds >= MOST_SECONDS:
            return False
        return elapsed_seconds < LEAST_SECONDS or not is_steady(taken)


def profiled(taken: Sequence[float], step_seconds: float, load: MachineLoad) -> Profiled:
    """Return the quality of a profile in which a step takes `step_seconds`, from the times of steps and the load."""
    interval = median_interval(taken)
    is_unsteady = interval is not None and not is_steady(taken)
    # The step of a profile is the sum of the medians of its passes, which may differ a little from the median of sums.
    low, high = (None, None) if interval is None else (min(interval[0], step_seconds), max(interval[1], step_seconds))
    return Profiled(
        num_steps=len(taken),
        low_seconds=None if low is None else _rounded(low, ROUND_FLOOR),
        high_seconds=None if high is None else _rounded(high, ROUND_CEILING),
        other_cpu_share=load.other_cpu_share,
        waited_share=load.waited_share,
        flags=(*(("busy_machine",) if load.is_busy else ()), *(("unsteady",) if is_unsteady else ())),
    )


def _rounded(seconds: float, rounding: str) -> float:
    """Return the end of an interval with four digits; rounding outwards keeps what lies within it within it."""
    return float(Context(prec=4, rounding=rounding).create_decimal(repr(seconds)))
