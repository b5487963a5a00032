"""How far a plan must be played until what is seen goes on for ever, and what a step takes then.

Most plans are steady after two or three steps. One that averages every k-th step is seen whole after k of them; one
whose steps wait for transfers of some steps ago runs ahead of these first, however slow they are.
"""

from __future__ import annotations

import numpy as np

from autosync.simulators.shared.arrays import Floats, Integers

NUM_ITERATIONS = 8
"""As many as steps need to become steady, and more: what goes on into the next forward pass settles in two or three."""

RAREST = 64
"""What is done less often than every so many steps is played as if it were done so often, and counts for less."""

LONGEST_LAG = 16
"""What waits for something longer ago is played as if it waited for this: in the long run it makes no difference."""

_NUM_UNSETTLED = 2
"""Where steps do not become steady, so many first ones do not count."""

_NUM_SETTLED = NUM_ITERATIONS // 2
"""Where steps wait for what was done long ago, so many last ones count."""


def num_iterations(every: Integers, lag: Integers) -> int:
    """As many as must be played of a plan whose operations are done so often and are waited for so late."""
    rarest, longest = _within_reach(every, lag)
    return max(NUM_ITERATIONS, 2 * rarest) + (2 * longest if longest > 1 else 0)


def within_reach(every: Integers, lag: Integers) -> tuple[Integers, Integers]:
    """The same, as they are played."""
    return np.minimum(every, RAREST), np.minimum(lag, LONGEST_LAG)


def step_seconds(step_ends: Floats, ended: Floats, every: Integers, lag: Integers) -> float:
    """A step in the long run, of a plan that was played for so many iterations, or until steps became steady.

    `ended` says for each iteration when each of its parts ended. Where steps do not become steady the median counts:
    ranks that run ahead of each other make long and short ones in turns, measured and played.
    """
    period, longest = _within_reach(every, lag)
    assert len(step_ends) > period, "a plan cannot deadlock, so all its steps end"
    if period > 1:
        return _of_periods(step_ends, period, int(every.max()))
    if longest > 1:
        return max(float(step_ends[-1] - step_ends[-1 - _NUM_SETTLED]) / _NUM_SETTLED, _pace(ended, longest))
    if len(step_ends) < NUM_ITERATIONS:
        return float(step_ends[-1] - step_ends[-2])
    return float(np.median(np.diff(step_ends)[_NUM_UNSETTLED - 1 :]))


def _within_reach(every: Integers, lag: Integers) -> tuple[int, int]:
    return min(int(every.max(initial=1)), RAREST), min(int(lag.max(initial=0)), LONGEST_LAG)


def _of_periods(step_ends: Floats, period: int, rarest: int) -> float:
    """The mean of the last period. What is done less often than was played adds that much less to a usual step."""
    mean = float(step_ends[-1] - step_ends[-1 - period]) / period
    if rarest <= period:
        return mean
    # Before the end of the first period nothing of it was done.
    usual = float(step_ends[period - 2] - step_ends[0]) / (period - 2)
    return usual + (mean - usual) * period / rarest


def _pace(ended: Floats, longest: int) -> float:
    """How far apart the same transfers of two iterations end: steps that run ahead of them now will not for ever."""
    last = len(ended) - 1 - longest
    apart = (ended[last] - ended[last - _NUM_SETTLED]) / _NUM_SETTLED
    known = apart[np.isfinite(apart)]
    return float(np.median(known)) if len(known) else 0.0
