"""`mcmc`: FlexFlow's search, a Metropolis walk through the space.

From where the walk stands, one random change is tried. It goes there if the step became faster, else with probability
exp(-beta * d), where d is by how much of its time the step became slower. (FlexFlow has the difference in milliseconds
instead, which fits one size of model; and it starts from data parallelism, as we do.) The walk is never stored: it is
walked again through the history, with chances that depend on the strategies alone.
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
"""A step that is slower by a tenth is gone to one time in twenty."""

MAX_AWAY = 8
"""Where this many changes of one strategy bring nothing new, one more change is made on top, and so on."""

FARTHEST = 10


class Mcmc:
    """Walks."""

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
        """What people have today; then anything."""
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
    """Where the walk stands after these; nowhere before the first that was measured."""
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
