"""Decides how many steps of a plan to simulate until it is steady, and computes the step time in the long run.

Most plans are steady after two or three steps. A plan that averages every k-th step repeats after k steps, or after the
least common multiple of several such numbers. A plan whose steps wait for transfers of earlier steps first runs ahead
of these, however slow they are.
"""

from __future__ import annotations

import math

import numpy as np

from autosync.simulators.shared.arrays import Floats, Integers

NUM_ITERATIONS = 8
"""The number of simulated steps, more than a plan needs to become steady: work that continues into the next forward
pass settles in two or three."""

RAREST = 64
"""The longest period that is simulated. Work that is done less often is simulated with this period, and its time is
scaled down."""

LONGEST_LAG = 16
"""The longest lag that is simulated. A longer one is shortened to this, which makes no difference in the long run."""

_NUM_UNSETTLED = 2
"""The number of first steps that do not count if steps do not become steady."""

_NUM_SETTLED = NUM_ITERATIONS // 2
"""The least number of last steps that count if steps wait for work of long ago. Single ones are long and short by
turns, so as many count as that work lies back."""


def num_iterations(every: Integers, lag: Integers) -> int:
    """Return how many iterations to simulate, given how often operations are done and how late they are waited for."""
    period, longest = _within_reach(every, lag)
    return max(NUM_ITERATIONS, 2 * period) + (3 * longest if longest > 1 else 0)


def num_until_all(every: Integers, lag: Integers, num_last: int) -> int:
    """Return how many iterations to simulate so that all work is done in the last of them, but for `num_last` more."""
    period, _ = _within_reach(every, lag)
    return -(-(num_iterations(every, lag) - num_last) // period) * period + num_last


def within_reach(every: Integers, lag: Integers) -> tuple[Integers, Integers]:
    """Return how often and how late operations are simulated."""
    return np.minimum(every, RAREST), np.minimum(lag, LONGEST_LAG)


def step_seconds(step_ends: Floats, ended: Floats, every: Integers, lag: Integers) -> float:
    """Return the step time in the long run, of a plan that was simulated until its steps were steady, or to the end.

    `ended` has for each iteration when each of its parts ended. If steps do not become steady, the median counts: ranks
    that run ahead of each other alternate between long and short steps, both measured and simulated.
    """
    if len(step_ends) == 1:
        # Everything was at rest again after one step.
        return float(step_ends[0])
    period, longest = _within_reach(every, lag)
    assert len(step_ends) > period, "a plan cannot deadlock, so all its steps end"
    if period > 1:
        return _of_periods(step_ends, period, every)
    if longest > 1:
        count = max(_NUM_SETTLED, longest)
        return max(float(step_ends[-1] - step_ends[-1 - count]) / count, _pace(ended, longest, count))
    if len(step_ends) < NUM_ITERATIONS:
        return float(step_ends[-1] - step_ends[-2])
    return float(np.median(np.diff(step_ends)[_NUM_UNSETTLED - 1 :]))


def _within_reach(every: Integers, lag: Integers) -> tuple[int, int]:
    """Return the number of steps after which simulated ones repeat, at most `RAREST`, and the longest simulated lag."""
    periods = set(np.minimum(every, RAREST).tolist())
    return min(math.lcm(*periods), RAREST), min(int(lag.max(initial=0)), LONGEST_LAG)


def _of_periods(step_ends: Floats, period: int, every: Integers) -> float:
    """Return the mean of the last period. Work that is done less often than simulated adds less, in proportion."""
    mean = float(step_ends[-1] - step_ends[-1 - period]) / period
    if every.max() <= period:
        return mean
    # Before the end of the first period no such work was done.
    usual = float(step_ends[period - 2] - step_ends[0]) / (period - 2)
    # All of it was simulated in the same steps. So the harmonic mean counts, in which each operation weighs the same.
    rarity = float(1 / np.mean(1 / every[every >= period]))
    return usual + (mean - usual) * period / rarity


def _pace(ended: Floats, longest: int, count: int) -> float:
    """Return the mean time between the ends of the same transfers in successive iterations, over the last `count`.

    Steps cannot run ahead of these transfers for ever.
    """
    last = len(ended) - 1 - longest
    apart = (ended[last] - ended[last - count]) / count
    known = apart[np.isfinite(apart)]
    return float(np.median(known)) if len(known) else 0.0
