"""`learned`: thousands of strategies are simulated for each that is measured.

Each round the simulators learn all that was measured so far. Then strategies are bred by predicted time from presets,
samples and the fastest measured ones, over some generations (`breeding`). Where there is a quick simulator beside the
precise one, it does the breeding, and the precise one judges the most promising. Of these such are picked that are
predicted to be fast or might well be, each of them unlike those picked before it in the same round. In the first round,
where nothing but simulators speaks, some places belong to presets: they are what people found by hand.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.breeding import BOLDNESS, Breeding, Judge, Judged
from autosync.search.proposers.history import Outcome, Reader, fastest, new_ones, samples, seen_ids
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.likeness import Likeness
from autosync.search.proposers.residuals import Residuals
from autosync.search.proposers.style import Styles
from autosync.strategy.space import Space

NUM_MEASURED = 12
"""So many of the fastest measured strategies are parents."""

NUM_COMPARED = 24
"""The precise simulator is held against so many of the fastest measured ones: what it says of slow ones is no matter,
and it takes its time."""

NUM_TWINS = 4
"""Of those for which the quick simulator says the very same, so many are kept: the precise one tells them apart."""

NUM_CONSIDERED = 300
SHARE_KNOWN = 0.5
"""Of the first round, as much is presets."""


class Learned:
    """Simulates, breeds and picks."""

    name = "learned"
    round_size = 6

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._reader = Reader()
        self._likeness = Likeness(ground.model, ground.cluster)
        self._styles = Styles(Space(model=ground.model, cluster=ground.cluster, limits=ground.limits))

    def propose(
        self, history: Sequence[Record], count: int, rng: random.Random, *, taken: Collection[str] = ()
    ) -> list[Candidate]:
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        judge, considered = self._considered(history, fastest(outcomes), rng)
        picked: list[tuple[float, Candidate]] = []
        if not outcomes:
            picked = self._known(judge, round(SHARE_KNOWN * count), seen)
        picked += self._picked(considered, judge.residuals, count - len(picked), seen)
        if not picked:
            # All that was bred is known already; the domain may still have others.
            return new_ones(self._ground, samples(self._ground, rng), count, seen)
        return [one for _, one in sorted(picked, key=lambda pair: pair[0])]

    def _considered(
        self, history: Sequence[Record], measured: Sequence[Outcome], rng: random.Random
    ) -> tuple[Judge, list[Judged]]:
        """Who has the last word, and the most promising of all that was bred by its judgement."""
        ground = self._ground
        quick = ground.screen or ground.simulator
        quick.learn(history)
        judge = Judge(quick, self._likeness, measured)
        most = ground.num_simulated if ground.screen is None else ground.num_screened
        twins = 1 if ground.screen is None else NUM_TWINS
        bred = Breeding(ground, judge, self._likeness, self._styles, most=most, twins=twins)
        bred.breed(measured[:NUM_MEASURED], rng)
        if ground.screen is None:
            return judge, bred.most_promising(NUM_CONSIDERED)
        ground.simulator.learn(history)
        judge = Judge(ground.simulator, self._likeness, measured[:NUM_COMPARED])
        promising = bred.most_promising(ground.num_simulated)
        judged = judge.judge([(one.origin, one.strategy) for one in promising])
        # Of those that the precise simulator cannot tell apart either, one is enough, and so is one that was measured.
        distinct: dict[float, Judged] = {}
        for one in judged:
            if one.seconds not in judge.measured_seconds:
                distinct.setdefault(one.seconds, one)
        return judge, list(distinct.values())

    def _known(self, judge: Judge, count: int, seen: set[str]) -> list[tuple[float, Candidate]]:
        """The most promising presets."""
        presets = [(one.origin, one.strategy) for one in self._ground.known if one.strategy is not None]
        found: list[tuple[float, Candidate]] = []
        for one in sorted(judge.judge(presets), key=lambda one: one.log_seconds):
            wanted = 1 if len(found) < count else 0
            fresh = new_ones(self._ground, [(one.origin, one.strategy)], wanted, seen)
            found += [(one.log_seconds, candidate) for candidate in fresh]
        return found

    def _picked(
        self, judged: Sequence[Judged], residuals: Residuals, count: int, seen: set[str]
    ) -> list[tuple[float, Candidate]]:
        """One after another: the fastest as predicted, then what might be fastest, given those before."""
        considered = list(judged)
        picked: list[tuple[float, Candidate]] = []
        while considered and len(picked) < count:
            hopes = np.array([one.log_seconds for one in considered])
            if picked:
                _, spreads = residuals.correct(np.array([one.vector for one in considered]))
                hopes -= BOLDNESS * np.minimum(spreads, [one.spread for one in considered])
            one = considered.pop(int(np.argmin(hopes)))
            found = new_ones(self._ground, [(one.origin, one.strategy)], 1, seen)
            if found:
                picked.append((one.log_seconds, found[0]))
                residuals = residuals.believing(one.vector)
        return picked
