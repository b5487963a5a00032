"""How far the fastest strategy of all is below the best so far, in the mean: fitted to replayed searches.

The *reach* is the one at which replayed rounds are expected to bring, together, what they brought. The gain of each
round is expected by a belief about errors that was fitted to all other models, and that the trials before it have
changed, as in a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.expected_gain import GainCurve, gain_curve
from autosync.search.trust.measured_spread import RoundsOfTarget
from autosync.search.trust.trials_so_far import PastGain, PastTrial, TrialsSoFar, learned_reach

LEAST_REACH, MOST_REACH = 1e-4, 0.1
_NUM_HALVINGS = 20


class RoundGains(NamedTuple):
    """A round of a search: the gains that its trials might have brought together, the one that they brought, and each.

    What they might have brought is by predictions alone.
    """

    curve: GainCurve
    found: float
    trials: tuple[PastGain, ...]


def gains_of(target: RoundsOfTarget, belief: ErrorBelief) -> Iterator[RoundGains]:
    """Yield the gains of each round of a search."""
    so_far = TrialsSoFar(belief=belief, best_log=0.0)
    for trials in target.rounds:
        best = so_far.best_log
        tried = [
            PastTrial(expected=Expectation(log_seconds=log, spread=spread, situation="later"), log_seconds=found)
            for log, spread, found in trials
        ]
        curve = gain_curve(math.exp(best), [one.expected for one in tried], so_far.errors_believed())
        gains = tuple(so_far.take(tried))
        yield RoundGains(curve, 1 - math.exp(so_far.best_log - best), gains)


def expected_of(rounds: Sequence[RoundGains], reach: float | None) -> float:
    """Return what the rounds of a search are expected to bring, each just before it; `reach` is believed at first."""
    past: list[PastGain] = []
    total = 0.0
    for one in rounds:
        total += one.curve.mean(learned_reach(reach, past))
        past += one.trials
    return total


def total_gains(targets: Sequence[RoundsOfTarget], beliefs: Mapping[str, ErrorBelief]) -> tuple[float, float]:
    """Return what all rounds are expected to bring, and what they brought. `beliefs` has one for each model."""
    searches = [(list(gains_of(one, beliefs[one.model])), beliefs[one.model].reach) for one in targets]
    expected = math.fsum(expected_of(rounds, reach) for rounds, reach in searches)
    return expected, math.fsum(one.found for rounds, _ in searches for one in rounds)


def fitted_reach(targets: Sequence[RoundsOfTarget], beliefs: Mapping[str, ErrorBelief]) -> float:
    """Return the reach at which rounds are expected to bring what they brought, within limits."""
    searches = [list(gains_of(one, beliefs[one.model])) for one in targets]
    total = math.fsum(one.found for rounds in searches for one in rounds)
    low, high = math.log(LEAST_REACH), math.log(MOST_REACH)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        expected = math.fsum(expected_of(rounds, math.exp(middle)) for rounds in searches)
        low, high = (middle, high) if expected < total else (low, middle)
    return math.exp((low + high) / 2)
