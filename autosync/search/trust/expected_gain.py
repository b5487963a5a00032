"""The gain that trials are expected to bring: by which share the fastest of them falls below the best so far.

A trial that is slower than the best so far brings nothing, so uncertain strategies bring more than certain ones of the
same predicted time (expected improvement). The errors of the trials are taken to be independent apart from their
common bias. A trial that is fast by luck brings nothing either, so the noise of measurements is taken out of errors.

Uncertainty alone promises too much. The fastest of several uncertain strategies would be fast with near certainty, if
errors were as large on the fast side as on the slow one. But step times have a floor: a strategy may be much slower
than predicted, and hardly faster than all others. So a gain needs two things: a trial that may be so fast, and a
strategy that is. How far the fastest strategy is below the best so far is taken to be exponentially distributed, with
the belief's `reach` as its mean.

A search may count only gains that a proof can tell from none. The chance of smaller ones then brings nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.bound_terms import holds
from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.simulators.learned.trials import NOISE
from autosync.simulators.shared.arrays import Floats

LEAST_SHARE = 0.3
"""The least share of errors that is not taken to be noise, as standard deviations."""

NUM_STEPS = 200
"""The number of gains over which the integral is taken. They are denser near 0, where most of the chance is."""


def expected_gain(
    best_seconds: float,
    expected: Sequence[Expectation],
    belief: ErrorBelief,
    *,
    least_seconds: float = 0.0,
    least_gain: float = 0.0,
) -> float:
    """Return the share of `best_seconds` by which trials are expected to shorten the step.

    `least_seconds` is the time that no strategy can beat; 0 if it is not known. Gains below `least_gain` count as none.
    """
    curve = gain_curve(best_seconds, expected, belief, least_seconds=least_seconds)
    return curve.mean(belief.reach, least_gain)


class GainCurve(NamedTuple):
    """Gains, the widths of their parts of the scale, and the chance that trials bring more, by predictions alone."""

    gains: Floats
    widths: Floats
    chances: Floats

    def mean(self, reach: float | None, least: float = 0.0) -> float:
        """Return the mean gain if those below `least` count as none.

        It is the integral of the chance that a gain is exceeded; from the least one on, with that one's chance before.
        """
        counted = self.gains >= least
        if not counted.any():
            return 0.0
        chances = self.chances if reach is None else self.chances * np.exp(-self.gains / reach)
        return float((chances * self.widths)[counted].sum() + least * np.interp(least, self.gains, chances))


def gain_curve(
    best_seconds: float, expected: Sequence[Expectation], belief: ErrorBelief, *, least_seconds: float = 0.0
) -> GainCurve:
    """Return the chances of gains by predictions alone."""
    # A bound that the best time refutes says nothing about other times.
    most = 1.0 - (least_seconds / best_seconds if holds(least_seconds, best_seconds) else 0.0)
    if not expected or most <= 0:
        return GainCurve(np.zeros(1), np.zeros(1), np.zeros(1))
    ends = most * np.linspace(0.0, 1.0, NUM_STEPS + 1) ** 2
    gains, widths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    log_seconds = math.log(best_seconds) + np.log1p(-gains)
    centres = np.array([one.log_seconds for one in expected])[:, None]
    spreads = np.array([one.spread for one in expected])[:, None]
    scales = belief.scale * spreads
    scales = np.sqrt(np.maximum(scales**2 - NOISE**2, (LEAST_SHARE * scales) ** 2))
    exceeded = np.zeros(NUM_STEPS)
    for bias, chance in belief.biases():
        below = belief.chances_below((log_seconds - centres - bias * spreads) / scales)
        exceeded += chance * (1 - np.prod(1 - below, axis=0))
    return GainCurve(gains, widths, exceeded)
