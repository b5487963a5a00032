"""Rounds: whenever no strategy is waiting, the proposer suggests several."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP, Candidate, by_prediction
from autosync.search.proposers.interface import Proposer
from autosync.search.study import StartedTrial, Study
from autosync.search.trust.expectation import Expecting
from autosync.simulators.interface import Simulator


class Rounds:
    """The trials of a study in succession.

    Stock DDP comes first, because everything is compared with it. What follows depends only on the seed and the
    measurements, including those for a proof. So a search that continues later or elsewhere takes the same course.

    With `expecting`, proposals are kept with what is expected of them.
    """

    def __init__(self, study: Study, proposer: Proposer, *, seed: int, expecting: Expecting | None = None) -> None:
        self._study = study
        self._proposer = proposer
        self._seed = seed
        self._expecting = expecting
        self._num_known = -1
        self.search_seconds = 0.0

    def next(self, num_left: int) -> StartedTrial | None:
        """Begin the next trial, one of at most `num_left`; None if the proposer finds nothing new."""
        asked = self._study.ask()
        while asked is None:
            if not self._propose(num_left):
                return None
            asked = self._study.ask()
        return asked

    def fill(self, num_left: int) -> bool:
        """Let the proposer suggest strategies if none waits; return whether it did."""
        return not self._study.waiting() and self._propose(num_left)

    def renew(self, num_left: int) -> bool:
        """Replace waiting strategies that were proposed before the last trial was known; return whether it was done."""
        if self._num_known == len(self._study.history()):
            return False
        self._study.withdraw(self._begun())
        return self._propose(num_left)

    def begin_predicted(self, count: int, simulator: Simulator) -> list[StartedTrial]:
        """Begin trials of stock DDP and of the strategies that are predicted to be fastest, all at once.

        If strategies wait, because the study was interrupted, their trials are begun instead.
        """
        if not self._study.waiting():
            self._enqueue([STOCK_DDP, *self.predicted(count, simulator)], [])
        return list(self._begun())

    def predicted(self, count: int, simulator: Simulator) -> list[Candidate]:
        """Return the strategies that the simulator predicts to be fastest among the proposals, without a trial."""
        started = time.monotonic()
        found = predicted(self._proposer, count, simulator, seed=self._seed)
        self.search_seconds += time.monotonic() - started
        return found

    def _begun(self) -> Iterator[StartedTrial]:
        """Begin the trials of all waiting strategies."""
        while (asked := self._study.ask()) is not None:
            yield asked

    def _propose(self, num_left: int) -> bool:
        """Enqueue the next round; return whether it has any strategies."""
        started = time.monotonic()
        history, taken = self._study.history(), self._study.taken()
        if not history and STOCK_DDP.strategy_id not in taken:
            proposed = [STOCK_DDP]
        else:
            rng = _lots(self._seed, len(self._study.searched()))
            count = min(self._proposer.round_size, num_left)
            proposed = self._proposer.propose(history, count, rng, taken=taken)
        self._enqueue(proposed, history)
        self.search_seconds += time.monotonic() - started
        return bool(proposed)

    def _enqueue(self, proposed: Sequence[Candidate], history: Sequence[Record]) -> None:
        self._num_known = len(history)
        expected = {} if self._expecting is None else self._expecting.of(history, proposed)
        self._study.enqueue(proposed, {key: one.to_plain() for key, one in expected.items()})


def first_round(proposer: Proposer, num_left: int, *, seed: int) -> list[Candidate]:
    """Return the strategies that a new study would try after stock DDP. Its trial teaches a proposer nothing."""
    count = min(proposer.round_size, num_left)
    return proposer.propose([], count, _lots(seed, 1), taken={STOCK_DDP.strategy_id})


def predicted(proposer: Proposer, count: int, simulator: Simulator, *, seed: int) -> list[Candidate]:
    """Return the strategies that a simulator predicts to be fastest among the proposals for a study without trials."""
    wanted = max(count, proposer.round_size)
    found = proposer.propose([], wanted, _lots(seed, 0), taken={STOCK_DDP.strategy_id})
    return _with_one_undivided(by_prediction(found, simulator), count)


def _with_one_undivided(ordered: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the first candidates. One of several has no stages, so that a proof compares both kinds."""
    chosen = list(ordered[:count])
    if count > 1 and chosen and all(one.has_stages for one in chosen):
        others = [one for one in ordered if not one.has_stages]
        chosen[-1:] = others[:1] or chosen[-1:]
    return chosen


def _lots(seed: int, num_searched: int) -> random.Random:
    """Return the random generator of a round. It depends only on the seed and the number of the search's trials."""
    return random.Random(f"{seed} {num_searched}")
