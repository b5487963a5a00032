"""`evolution`: breeds the fastest measured strategies. It simulates nothing; every strategy is measured.

The first generation is half presets and half samples. Later, the winner of a tournament among the fastest changes in
one or two aspects, or is crossed with another; sometimes a new sample is taken.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.history import (
    HistoryReader,
    Sourced,
    TriedStrategy,
    fastest,
    new_or_sampled,
    samples,
    seen_ids,
)
from autosync.search.proposers.interface import Ground

NUM_FIRST = 8
NUM_PARENTS = 12
TOURNAMENT = 3
P_SAMPLE = 0.1
P_CROSS = 0.3
P_SECOND_CHANGE = 0.5


class Evolution:
    """The proposer `evolution`."""

    name = "evolution"
    round_size = 4

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._reader = HistoryReader()

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        parents = fastest(outcomes)[:NUM_PARENTS]
        is_first = len(outcomes) + len(taken) < NUM_FIRST or not parents
        stream = self._first(rng) if is_first else self._children(parents, rng)
        return new_or_sampled(self._ground, stream, count, seen, rng)

    def _first(self, rng: random.Random) -> Iterator[Sourced]:
        """Yield the presets in random order, each followed by a sample, and then samples only."""
        known = [one for one in self._ground.known if one.strategy is not None]
        sampled = samples(self._ground, rng)
        for one in rng.sample(known, len(known)):
            assert one.strategy is not None, "only those with a strategy are here"
            yield one.origin, one.strategy
            yield next(sampled)
        yield from sampled

    def _children(self, parents: Sequence[TriedStrategy], rng: random.Random) -> Iterator[Sourced]:
        domain = self._ground.domain
        for _ in itertools.count():
            chance = rng.random()
            if chance < P_SAMPLE:
                yield "sampled", domain.sample(rng)
            elif chance < P_SAMPLE + P_CROSS and len(parents) > 1:
                first, second = rng.sample(parents, 2)
                yield "crossed", domain.crossover(first.strategy, second.strategy, rng)
            else:
                child = domain.mutate(_winner(parents, rng).strategy, rng)
                yield "mutated", domain.mutate(child, rng) if rng.random() < P_SECOND_CHANGE else child


def _winner(parents: Sequence[TriedStrategy], rng: random.Random) -> TriedStrategy:
    """Return the fastest of a few random parents. The parents are ordered by speed."""
    return parents[min(rng.randrange(len(parents)) for _ in range(TOURNAMENT))]
