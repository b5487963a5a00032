"""What the trials of a search say about its next ones: how far predictions err, and how much is left to find.

Trials are taken one after the other. Each has an error, and was expected to bring a gain over the best before it. A
search whose trials bring less than was expected of them expects less of what follows: perhaps the best so far is the
fastest of all. Errors alone do not tell it. A proposer that searches a whole space always finds strategies that are
predicted to be a little faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.expected_gain import GainCurve, gain_curve
from autosync.search.trust.measured_spread import NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTrial:
    """A trial: what was expected of it, and the logarithm of the seconds that it showed."""

    expected: Expectation
    log_seconds: float


class PastGain(NamedTuple):
    """The gains that a trial might have brought, by predictions alone, and the one that it brought."""

    curve: GainCurve
    found: float


@dataclass(slots=True, kw_only=True)
class TrialsSoFar:
    """Takes in trials in their order. `best_log` is the logarithm of the best time so far, `belief` the one at first.

    `least_seconds` is the time that no strategy can beat, or 0.
    """

    belief: ErrorBelief
    best_log: float
    least_seconds: float = 0.0
    _errors: list[float] = field(default_factory=list, init=False)

    def take(self, trials: Iterable[PastTrial]) -> Iterator[PastGain]:
        """Take in trials, and yield for each what it might have brought and what it brought."""
        for one in trials:
            believed = self.belief.after(self._errors)
            curve = gain_curve(math.exp(self.best_log), [one.expected], believed, least_seconds=self.least_seconds)
            yield PastGain(curve, max(1 - math.exp(one.log_seconds - self.best_log), 0.0))
            if one.expected.log_seconds <= self.best_log + NEAR:
                self._errors.append(one.expected.error(one.log_seconds))
            self.best_log = min(self.best_log, one.log_seconds)

    def errors_believed(self) -> ErrorBelief:
        """Return the belief after the errors so far."""
        return self.belief.after(self._errors)


def belief_after(
    belief: ErrorBelief,
    best_log: float,
    trials: Iterable[PastTrial],
    *,
    least_seconds: float = 0.0,
    least_gain: float = 0.0,
) -> ErrorBelief:
    """Return the belief after trials, before which the best time had this logarithm; smaller gains count as none."""
    so_far = TrialsSoFar(belief=belief, best_log=best_log, least_seconds=least_seconds)
    gains = list(so_far.take(trials))
    return so_far.errors_believed().reaching(learned_reach(belief.reach, gains, least_gain))


def learned_reach(reach: float | None, gains: Iterable[PastGain], least_gain: float = 0.0) -> float | None:
    """Return the reach after trials: as much less or more as they brought less or more than was expected of them.

    What was believed before them counts as much as trials that are expected to bring one reach.
    """
    if reach is None:
        return None
    expected = found = reach
    for one in gains:
        expected += one.curve.mean(reach, least_gain)
        found += one.found if one.found >= least_gain else 0.0
    return reach * found / expected
