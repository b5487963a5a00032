"""Rounds: a proposer is asked for some strategies at a time, whenever none waits any more."""

from __future__ import annotations

import random
import time

from autosync.search.candidates import STOCK_DDP, Candidate, by_prediction
from autosync.search.proposers.interface import Proposer
from autosync.search.study import StartedTrial, Study
from autosync.simulators.interface import Simulator


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

    def next(self, num_left: int) -> StartedTrial | None:
        """The next trial, begun; None where the proposer finds nothing new. It is one of `num_left` at the most."""
        asked = self._study.ask()
        while asked is None:
            if not self._propose(num_left):
                return None
            asked = self._study.ask()
        return asked

    def predicted(self, count: int, simulator: Simulator) -> list[Candidate]:
        """Without a trial: what a simulator holds for fastest of what the proposer would try."""
        started = time.monotonic()
        found = predicted(self._proposer, count, simulator, seed=self._seed)
        self.search_seconds += time.monotonic() - started
        return found

    def _propose(self, num_left: int) -> bool:
        """Have the next round wait; whether there is one."""
        started = time.monotonic()
        history, taken = self._study.history(), self._study.taken()
        if not history and STOCK_DDP.strategy_id not in taken:
            proposed = [STOCK_DDP]
        else:
            rng = _lots(self._seed, len(self._study.searched()))
            count = min(self._proposer.round_size, num_left)
            proposed = self._proposer.propose(history, count, rng, taken=taken)
        self._study.enqueue(proposed)
        self.search_seconds += time.monotonic() - started
        return bool(proposed)


def first_round(proposer: Proposer, num_left: int, *, seed: int) -> list[Candidate]:
    """What a new study would try after stock DDP, which tells a proposer nothing of strategies."""
    count = min(proposer.round_size, num_left)
    return proposer.propose([], count, _lots(seed, 1), taken={STOCK_DDP.strategy_id})


def predicted(proposer: Proposer, count: int, simulator: Simulator, *, seed: int) -> list[Candidate]:
    """What a simulator holds for fastest of what a proposer would try in a study that has nothing yet."""
    wanted = max(count, proposer.round_size)
    found = proposer.propose([], wanted, _lots(seed, 0), taken={STOCK_DDP.strategy_id})
    return by_prediction(found, simulator)[:count]


def _lots(seed: int, num_searched: int) -> random.Random:
    """What a round draws by: nothing but the seed and how many trials the search has had."""
    return random.Random(f"{seed} {num_searched}")
