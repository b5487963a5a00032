"""How far the fastest strategy of all is below the best so far, in the mean: fitted to replayed searches.

The *reach* is the one at which replayed rounds are expected to bring, together, what they brought. The gain of each
round is expected by a belief about errors that was fitted to all other models, and that the errors before it in its
search have changed, as in a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.expected_gain import GainCurve, gain_curve
from autosync.search.trust.measured_spread import NEAR, RoundsOfTarget

LEAST_REACH, MOST_REACH = 1e-4, 0.1
_NUM_HALVINGS = 20


def gains_of(target: RoundsOfTarget, belief: ErrorBelief) -> Iterator[tuple[GainCurve, float]]:
    """Yield the chances of gains in each round of a search, by predictions alone, and the gain that it brought."""
    best = 0.0
    errors: list[float] = []
    for trials in target.rounds:
        expected = [Expectation(log_seconds=log, spread=spread, situation="later") for log, spread, _ in trials]
        fastest = min([best, *(found for *_, found in trials)])
        yield gain_curve(math.exp(best), expected, belief.after(errors)), 1 - math.exp(fastest - best)
        errors += [(found - log) / spread for log, spread, found in trials if log <= best + NEAR]
        best = fastest


def total_gains(targets: Sequence[RoundsOfTarget], beliefs: Mapping[str, ErrorBelief]) -> tuple[float, float]:
    """Return what all rounds are expected to bring, and what they brought. `beliefs` has one for each model."""
    gains = [
        (curve.mean(beliefs[one.model].reach), found)
        for one in targets
        for curve, found in gains_of(one, beliefs[one.model])
    ]
    return math.fsum(expected for expected, _ in gains), math.fsum(found for _, found in gains)


def fitted_reach(targets: Sequence[RoundsOfTarget], beliefs: Mapping[str, ErrorBelief]) -> float:
    """Return the reach at which rounds are expected to bring what they brought, within limits."""
    rounds = [one for target in targets for one in gains_of(target, beliefs[target.model])]
    total = math.fsum(found for _, found in rounds)
    low, high = math.log(LEAST_REACH), math.log(MOST_REACH)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        expected = math.fsum(curve.mean(math.exp(middle)) for curve, _ in rounds)
        low, high = (middle, high) if expected < total else (low, middle)
    return math.exp((low + high) / 2)
