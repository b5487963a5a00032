"""`learned`: simulates thousands of strategies for each measured one.

In each round the simulators learn from all measurements so far. Then strategies are bred by predicted time from
presets, samples and the fastest measured ones, over some generations (`breeding`). If there is a fast simulator besides
the precise one, it searches thousands of strategies for promising families, and the precise one continues from the best
of them. (If the fast one breeds for longer, it exploits its own errors.) Then strategies are picked that are predicted
to be fast or might be fast, each unlike those picked before it in the same round. The first round has no measurements,
so some of its places are for presets, which experts designed by hand. And it breeds several times from scratch: each
time may end in another family by chance, and later rounds begin at what was measured.

Strategies with stages are bred apart (`divisions`) and picked among the others.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.breeding import BOLDNESS, Breeding, Judge, Judged
from autosync.search.proposers.divisions import NEAR, Divisions
from autosync.search.proposers.history import (
    HistoryReader,
    Sourced,
    TriedStrategy,
    fastest,
    new_ones,
    samples,
    seen_ids,
)
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.likeness import Likeness
from autosync.search.proposers.style import Styles
from autosync.strategy.space import Space

NUM_MEASURED = 12
"""The number of fastest measured strategies that become parents."""

NUM_COMPARED = 24
"""The number of fastest measured strategies that correct the precise simulator. It is slow, and its errors on slow
strategies do not matter."""

SHARE_SAMPLED = 0.25
"""The share of samples when breeding starts from scratch; the rest are children of the best, in equal generations."""

NUM_GENERATIONS = 6
NUM_PARENTS = 40
NUM_TWINS = 4
"""The number of strategies that are kept if a simulator predicts exactly the same time for all of them. The precise
simulator may tell them apart where the fast one cannot, and a trial where no simulator can."""

NO_NEWS = 0.03
"""The penalty, in log time, for a strategy with the same predicted time as a measured one, because its trial would
teach little. It is tried if all others are predicted to be slower by this share."""

NUM_HANDED_ON = 100
"""The number of most promising strategies that the fast simulator hands to the precise one. They take at most half of
the strategies that the precise one may predict."""

NUM_LATE_GENERATIONS = 20
NUM_LATE_PARENTS = 10
"""The number of parents in the precise simulator's generations. They are many and small, because the precise simulator
refines and does not explore."""

NUM_CONSIDERED = 300
SHARE_KNOWN = 0.5
"""The share of presets in the first round."""


class Learned:
    """The proposer `learned`."""

    name = "learned"
    round_size = 6

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._reader = HistoryReader()
        self._likeness = Likeness(ground.model, ground.cluster)
        self._divisions = Divisions(ground, self._likeness)
        self._styles = Styles(Space(model=ground.model, cluster=ground.cluster, limits=ground.limits))

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        whole = [one for one in outcomes if not one.strategy.stages]
        judge, considered = self._considered(history, fastest(whole), rng)
        picked: list[tuple[float, Candidate]] = []
        if not outcomes:
            picked = self._known(judge, round(SHARE_KNOWN * count), seen)
        divided = [one for one in outcomes if one.strategy.stages]
        most = self._divisions.most(divided, count)
        if most:
            more = self._divisions.bred(fastest(divided), rng)
            if not divided and more and considered and more[0].log_seconds < considered[0].log_seconds + NEAR:
                picked = picked[: max(0, count - 1)] + self._picked(more, judge, 1, seen)
                most -= 1
            considered += more
        picked += self._picked(considered, judge, count - len(picked), seen, most_divided=most)
        if not picked:
            # All bred strategies are known already; the domain may still have others.
            return new_ones(self._ground, samples(self._ground, rng), count, seen)
        return [one for _, one in sorted(picked, key=lambda pair: pair[0])]

    def _considered(
        self, history: Sequence[Record], measured: Sequence[TriedStrategy], rng: random.Random
    ) -> tuple[Judge, list[Judged]]:
        """Return the judge that picks, and the most promising strategies that were bred with it."""
        ground = self._ground
        parents = [("measured", one.strategy) for one in measured[:NUM_MEASURED]]
        if ground.screen is None:
            ground.simulator.learn(history)
            judge = Judge(ground.simulator, self._likeness, measured)
            return judge, self._bred(judge, ground.num_simulated, parents, rng).most_promising(NUM_CONSIDERED)
        ground.screen.learn(history)
        ground.simulator.learn(history)
        screen = Judge(ground.screen, self._likeness, measured)
        judge = Judge(ground.simulator, self._likeness, measured[:NUM_COMPARED])
        found: list[Judged] = []
        for _ in range(1 if measured else ground.num_starts):
            found += self._refined(screen, judge, parents, rng)
        return judge, sorted(found, key=lambda one: one.hope)

    def _refined(self, screen: Judge, judge: Judge, parents: Sequence[Sourced], rng: random.Random) -> list[Judged]:
        """Return the most promising strategies that the fast simulator found and the precise one refined."""
        ground = self._ground
        families = self._bred(screen, ground.num_screened, parents, rng, twins=NUM_TWINS)
        handed_on = families.most_promising(min(NUM_HANDED_ON, ground.num_simulated // 2))
        bred = self._breeding(judge, ground.num_simulated, twins=NUM_TWINS)
        bred.add([*parents, *((one.origin, one.strategy) for one in handed_on)])
        bred.evolve(rng, num_generations=NUM_LATE_GENERATIONS, num_parents=NUM_LATE_PARENTS)
        return bred.most_promising(NUM_CONSIDERED)

    def _bred(
        self, judge: Judge, most: int, parents: Sequence[Sourced], rng: random.Random, *, twins: int = 1
    ) -> Breeding:
        """Return a breeding that started from scratch."""
        bred = self._breeding(judge, most, twins=twins)
        bred.begin(parents, rng, share_sampled=SHARE_SAMPLED)
        bred.evolve(rng, num_generations=NUM_GENERATIONS, num_parents=NUM_PARENTS)
        return bred

    def _breeding(self, judge: Judge, most: int, *, twins: int = 1) -> Breeding:
        return Breeding(self._ground, judge, self._likeness, self._styles, most=most, twins=twins)

    def _known(self, judge: Judge, count: int, seen: set[str]) -> list[tuple[float, Candidate]]:
        """Return the most promising presets without stages."""
        known = [one for one in self._ground.known if not one.has_stages]
        presets = [(one.origin, one.strategy) for one in known if one.strategy is not None]
        found: list[tuple[float, Candidate]] = []
        for one in sorted(judge.judge(presets), key=lambda one: one.log_seconds):
            wanted = 1 if len(found) < count else 0
            fresh = new_ones(self._ground, [(one.origin, one.strategy)], wanted, seen)
            found += [(one.log_seconds, candidate) for candidate in fresh]
        return found

    def _picked(
        self, judged: Sequence[Judged], judge: Judge, count: int, seen: set[str], *, most_divided: int | None = None
    ) -> list[tuple[float, Candidate]]:
        """Pick strategies in turn: first the fastest by prediction, then those that might be fastest.

        Each pick makes similar strategies less promising. At most `most_divided` of them have stages.
        """
        considered = list(judged)
        residuals = judge.residuals
        told = set(judge.measured_seconds)
        picked: list[tuple[float, Candidate]] = []
        while len(picked) < count:
            if most_divided is not None and sum(one.has_stages for _, one in picked) >= most_divided:
                considered = [one for one in considered if not one.strategy.stages]
            if not considered:
                break
            hopes = np.array([one.log_seconds + NO_NEWS * (one.seconds in told) for one in considered])
            if picked:
                _, spreads = residuals.correct(np.array([one.vector for one in considered]))
                hopes -= BOLDNESS * np.minimum(spreads, [one.spread for one in considered])
            one = considered.pop(int(np.argmin(hopes)))
            found = new_ones(self._ground, [(one.origin, one.strategy)], 1, seen)
            if found:
                picked.append((one.log_seconds, found[0]))
                residuals = residuals.believing(one.vector)
                told.add(one.seconds)
        return picked
