"""The outlook of a running search: its expectations of the waiting strategies, corrected by the errors so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.search.candidates import Candidate
from autosync.search.measurement_effort import Effort
from autosync.search.progress import SearchStatus
from autosync.search.stopping import LEAST_GAIN
from autosync.search.study import Study
from autosync.search.trust.error_belief import ErrorBelief
from autosync.search.trust.expectation import Expectation
from autosync.search.trust.measured_spread import belief_about
from autosync.search.trust.next_trials import NextTrials, TrialWorth
from autosync.search.trust.trials_so_far import PastTrial, belief_after

CONFIDENCE = 0.95
"""The confidence of the interval in which the first measurement is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutlook:
    """What the next trials of a study are expected to bring.

    `simulator` names the simulator of the expectations. `steps_train` says that the steps of trials are steps of a
    training.
    """

    study: Study
    simulator: str
    effort: Effort
    training_seconds: float
    least_seconds: float
    steps_train: bool = False

    def next_trials(self, status: SearchStatus, *, best_seconds: float, is_proof_due: bool) -> NextTrials | None:
        """Return what the waiting strategies are expected to bring over the best time so far.

        None if that is not known: nothing waits, nothing was measured yet (the best time is infinite), or a strategy
        waits that no proposer suggested.
        """
        waiting, known = self.study.waiting(), self._expected()
        if not waiting or math.isinf(best_seconds) or any(one not in known for one in waiting):
            return None
        worth = TrialWorth(
            effort=self.effort,
            training_seconds=self.training_seconds,
            least_seconds=self.least_seconds,
            steps_train=self.steps_train,
        )
        return worth.of(
            best_seconds,
            [known[one] for one in waiting],
            self.belief(status),
            proof_seconds=0.0 if is_proof_due else status.proof_seconds(best_seconds),
        )

    def belief(self, status: SearchStatus) -> ErrorBelief:
        """Return what is believed of the next trials, after those so far."""
        known = self._expected()
        best_log, later = math.inf, []
        for one in status.tried:
            if one.measurement is None:
                continue
            expected, log_seconds = known.get(one.candidate.strategy_id), math.log(one.measurement.median_seconds)
            if expected is None or expected.situation == "first" or math.isinf(best_log):
                best_log = min(best_log, log_seconds)
            else:
                later.append(PastTrial(expected=expected, log_seconds=log_seconds))
        believed = belief_about(self.simulator, "later")
        return belief_after(believed, best_log, later, least_seconds=self.least_seconds, least_gain=LEAST_GAIN)

    def first_words(self, candidates: Sequence[Candidate]) -> str | None:
        """Return what is expected of strategies before any trial; None if nothing is."""
        known = self._expected()
        expected = [known[one.strategy_id] for one in candidates if one.strategy_id in known]
        if not expected:
            return None
        fastest = min(expected, key=lambda one: one.log_seconds)
        low, high = belief_about(self.simulator, "first").interval(CONFIDENCE)
        ends = [1e3 * math.exp(fastest.log_seconds + end * fastest.spread) for end in (low, high)]
        return f"expected without a trial: {fastest.seconds * 1e3:.4g} ms a step ({ends[0]:.4g} to {ends[1]:.4g})"

    def _expected(self) -> dict[str, Expectation]:
        found = {key: Expectation.from_plain(fields) for key, fields in self.study.expected().items()}
        return {key: one for key, one in found.items() if one is not None}
