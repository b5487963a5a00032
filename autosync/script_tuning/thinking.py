"""A proposer that thinks while the script trains by the fastest strategy so far."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from autosync.datasets.schema import Record
from autosync.script_tuning.service import ScriptTrials
from autosync.search.candidates import Candidate, candidate_of
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.proposers.interface import Proposer
from autosync.strategy.bundle import Bundle


class ProposerMeanwhile:
    """Another proposer; while it works out its proposals, the script goes on. See `search.proposers.interface`."""

    def __init__(self, proposer: Proposer, trials: ScriptTrials, preparer: TrialPreparer) -> None:
        self._proposer = proposer
        self._trials = trials
        self._preparer = preparer

    @property
    def name(self) -> str:
        """The name of the other proposer."""
        return self._proposer.name

    @property
    def round_size(self) -> int:
        """The round size of the other proposer."""
        return self._proposer.round_size

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        def work() -> list[Candidate]:
            return self._proposer.propose(history, count, rng, taken=taken)

        return self._trials.train_while(work, self._fastest(history))

    def _fastest(self, history: Sequence[Record]) -> Bundle | None:
        measured = [(one.measurement.median_seconds, one.trial, one) for one in history if one.measurement is not None]
        if not measured:
            return None
        return self._preparer.prepare(candidate_of(min(measured)[2])).bundle
