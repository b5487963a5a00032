"""Rounds: a proposer is asked for some strategies at a time, whenever none waits any more."""

from __future__ import annotations

import random
import time

from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.proposers.interface import Proposer
from autosync.search.study import Asked, Study


class Rounds:
    """The trials of a study, one after another.

    Stock DDP comes first: what users have today is what all is held against. What follows depends on the seed and on
    what was measured, for a proof too, so a search that goes on elsewhere, or later, is the same search.
    """

    def __init__(self, study: Study, proposer: Proposer, *, seed: int) -> None:
        self._study = study
        self._proposer = proposer
        self._seed = seed
        self.search_seconds = 0.0

    def next(self, num_left: int) -> Asked | None:
        """The next trial, begun; None where the proposer finds nothing new. At most `num_left` are to follow it."""
        asked = self._study.ask()
        while asked is None:
            if not self._propose(num_left):
                return None
            asked = self._study.ask()
        return asked

    def predicted(self, count: int) -> list[Candidate]:
        """What the proposer would try first, without trying it."""
        started = time.monotonic()
        wanted = max(count, self._proposer.round_size)
        found = self._proposer.propose([], wanted, random.Random(f"{self._seed} 0"), taken={STOCK_DDP.strategy_id})
        self.search_seconds += time.monotonic() - started
        return found[:count]

    def _propose(self, num_left: int) -> bool:
        """Have the next round wait; whether there is one."""
        started = time.monotonic()
        history, taken = self._study.history(), self._study.taken()
        if not history and STOCK_DDP.strategy_id not in taken:
            proposed = [STOCK_DDP]
        else:
            rng = random.Random(f"{self._seed} {len(self._study.searched())}")
            count = min(self._proposer.round_size, num_left)
            proposed = self._proposer.propose(history, count, rng, taken=taken)
        self._study.enqueue(proposed)
        self.search_seconds += time.monotonic() - started
        return bool(proposed)
