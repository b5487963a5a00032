"""`mcmc`: FlexFlow's search, a Metropolis walk through the space.

Each trial changes the current strategy at random. The walk moves to the new strategy if the step became faster, else
with probability exp(-beta * d), where d is the relative slowdown. (FlexFlow uses the difference in milliseconds
instead, which fits one size of model. It also starts from data parallelism, as we do.) The walk is not stored: it is
repeated from the history, with random numbers that depend only on the strategies.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Sequence

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.history import HistoryReader, Sourced, TriedStrategy, new_or_sampled, samples, seen_ids
from autosync.search.proposers.interface import Ground

BETA = 30.0
"""The strictness of the walk. With this value it moves to a step that is slower by a tenth one time in twenty."""

MAX_AWAY = 8
"""The number of draws without a new strategy after which a draw makes one more change."""

FARTHEST = 10


class Mcmc:
    """The proposer `mcmc`."""

    name = "mcmc"
    round_size = 1

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._reader = HistoryReader()

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        here = _walked(outcomes)
        stream = self._changes(here, rng) if here is not None else self._starts(rng)
        return new_or_sampled(self._ground, stream, count, seen, rng)

    def _starts(self, rng: random.Random) -> Iterator[Sourced]:
        """Yield the known strategies first, then samples."""
        for one in self._ground.known:
            if one.strategy is not None:
                yield one.origin, one.strategy
        yield from samples(self._ground, rng)

    def _changes(self, here: TriedStrategy, rng: random.Random) -> Iterator[Sourced]:
        domain = self._ground.domain
        for tries in itertools.count():
            strategy = here.strategy
            for _ in range(min(1 + tries // MAX_AWAY, FARTHEST)):
                strategy = domain.mutate(strategy, rng)
            yield "mutated", strategy


def _walked(outcomes: Sequence[TriedStrategy]) -> TriedStrategy | None:
    """Return the current strategy of the walk after these trials; None before the first measured one."""
    here: TriedStrategy | None = None
    for there in outcomes:
        if there.seconds is None:
            continue
        if here is None:
            here = there
            continue
        assert here.seconds is not None, "the walk stands on what was measured"
        slower = there.seconds / here.seconds - 1.0
        chance = random.Random(f"{here.strategy_id} {there.strategy_id}").random()
        if slower <= 0 or chance < math.exp(-BETA * slower):
            here = there
    return here
