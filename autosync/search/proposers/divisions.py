"""Divisions: strategies with stages, bred beside those without.

They are apart because a timeline that plays passes and sends takes longer, and because the errors of predictions with
and without stages have other causes. Parents are the ground's divisions, the presets with stages, and the fastest
measured ones.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from autosync.search.proposers.breeding import P_ANOTHER_CHANGE, P_CROSS, TOURNAMENT, Judge, Judged
from autosync.search.proposers.history import Sourced, TriedStrategy
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.likeness import Likeness

NUM_PLAYED = 160
FEWEST_PLAYED = 48
USUAL_PASSES = 300
"""The stages times microbatches up to which so many strategies are played a round, in the mean of the partitioner's
divisions. With more passes it is fewer."""

NUM_GENERATIONS = 4
FIRST_FACTOR = 3
"""Before a division is measured, a round plays so many times as many strategies, in so many times as many generations.
For lstm_ptb@x4 on 6-hosts-3-racks, four such rounds found steps of 242 to 244 ms by prediction, and smaller ones found
244 to 253 ms."""

NUM_PARENTS = 6
MOST_ALIKE = 3
"""The most parents with the same schedule and equally many stages. For acoustic_mlp@x50 on 5-hosts-slow-uplink, where
all parents were alike, three of six searches ended 5 % behind the others."""
NUM_MEASURED = 6
"""The number of fastest measured strategies that become parents."""

NUM_FAILED = 2
"""After so many trials with stages that failed, and none that ended, no more are proposed."""

P_GIVE_UP = 0.05
"""The chance to end a generation after a child that may not be tried, as where memory is short."""

NEAR = math.log(1.3)
"""A division is tried in the first round if its predicted time exceeds the best one by no more than this share (as a
logarithm): no measurement has corrected its prediction yet."""


class Divisions:
    """Breeds the strategies with stages of a ground."""

    def __init__(self, ground: Ground, likeness: Likeness) -> None:
        self._ground = ground
        self._likeness = likeness

    def most(self, outcomes: Sequence[TriedStrategy], count: int) -> int:
        """Return how many of a round's `count` strategies may have stages, after trials of strategies with stages.

        Before one is measured, half of a round may be wrong: so the others are tried too.
        """
        if not self._ground.divided:
            return 0
        if any(one.seconds is not None for one in outcomes):
            return count
        return 0 if len(outcomes) >= NUM_FAILED else (count + 1) // 2

    def bred(self, measured: Sequence[TriedStrategy], rng: random.Random) -> list[Judged]:
        """Return the most promising strategies with stages, the best first. The simulator has learned its trials."""
        ground = self._ground
        judge = Judge(ground.simulator, self._likeness, measured)
        known = [*ground.divided, *(one for one in ground.known if one.has_stages)]
        parents: list[Sourced] = [("measured", one.strategy) for one in measured[:NUM_MEASURED]]
        parents += [(one.origin, one.strategy) for one in known if one.strategy is not None]
        found = judge.judge(parents)
        factor = 1 if measured else FIRST_FACTOR
        num_left = factor * self._num_played() - len(found)
        for left in range(factor * NUM_GENERATIONS, 0, -1):
            children = list(itertools.islice(self._children(_parents(found), rng), max(num_left, 0) // left))
            num_left -= len(children)
            found += judge.judge(children)
        return sorted(found, key=lambda one: one.hope)

    def _num_played(self) -> int:
        passes = [len(one.strategy.stages) * one.strategy.microbatches for one in self._ground.divided if one.strategy]
        share = USUAL_PASSES / max(USUAL_PASSES, statistics.fmean(passes or [0]))
        return max(FEWEST_PLAYED, round(NUM_PLAYED * share))

    def _children(self, parents: Sequence[Judged], rng: random.Random) -> Iterator[Sourced]:
        domain = self._ground.domain
        while parents:
            parent = parents[min(rng.randrange(len(parents)) for _ in range(TOURNAMENT))]
            if rng.random() < P_CROSS:
                child = domain.crossover(parent.strategy, rng.choice(parents).strategy, rng)
                origin = "crossed"
            else:
                child, origin = domain.mutate(parent.strategy, rng), "mutated"
                while rng.random() < P_ANOTHER_CHANGE:
                    child = domain.mutate(child, rng)
            if child.stages and domain.contains(child):
                yield origin, child
            elif rng.random() < P_GIVE_UP:
                return


def _parents(found: Sequence[Judged]) -> list[Judged]:
    """Return the most promising strategies, the best first, of which only some are alike."""
    kinds = Counter[tuple[str, int]]()
    parents: list[Judged] = []
    for one in sorted(found, key=lambda judged: judged.hope):
        kind = one.strategy.schedule, len(one.strategy.stages)
        kinds[kind] += 1
        if kinds[kind] <= MOST_ALIKE:
            parents.append(one)
    return parents[:NUM_PARENTS]
