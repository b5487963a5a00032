"""`learned`: thousands of strategies are simulated for each that is measured.

Each round the simulator learns all that was measured so far. Then strategies are bred by predicted time from presets,
samples and the fastest measured ones, over some generations. Of all of them those are picked that are predicted to be
fast or might well be, each of them unlike those picked before it in the same round. In the first round, where nothing
but the simulator speaks, some places belong to presets: they are what people found by hand.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate
from autosync.search.proposers.history import Outcome, Reader, Sourced, fastest, new_ones, samples, seen_ids
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.likeness import Floats, Likeness
from autosync.search.proposers.residuals import Residuals, residuals_of
from autosync.search.proposers.style import Styles
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space

NUM_GENERATIONS = 5
SHARE_SAMPLED = 0.25
"""Of what is simulated, as much is sampled; the rest is bred from the best, in equal generations."""

NUM_PARENTS = 40
NUM_MEASURED = 12
TOURNAMENT = 2
P_SAMPLE = 0.05
P_STYLE = 0.2
P_CROSS = 0.15
P_ANOTHER_CHANGE = 0.5

FEWEST_PIECES = 200
PIECES_PER_VARIABLE = 3
"""With more pieces than both a step is nothing but overhead, and takes long to simulate: it is left out."""

NUM_CONSIDERED = 300
BOLDNESS = 1.0
"""A strategy counts as fast as it would be if it were that many standard deviations faster than predicted."""

SHARE_KNOWN = 0.5
"""Of the first round, as much is presets."""


@dataclass(frozen=True, slots=True)
class _One:
    """A simulated strategy: `seconds` as the simulator predicts them, `log_seconds` corrected by what was measured."""

    origin: str
    strategy: Strategy
    vector: Floats
    seconds: float
    log_seconds: float
    spread: float

    @property
    def hope(self) -> float:
        """The logarithm of how fast it might be."""
        return self.log_seconds - BOLDNESS * self.spread


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
        self._ground.simulator.learn(history)
        outcomes = self._reader.outcomes(history)
        seen = seen_ids(outcomes, taken)
        measured = fastest(outcomes)
        residuals = self._residuals(measured)
        bred = _Breeding(self._ground, self._likeness, self._styles, residuals)
        bred.breed(measured[:NUM_MEASURED], rng)
        picked: list[Candidate] = []
        if not outcomes:
            picked = self._known(bred, round(SHARE_KNOWN * count), seen)
        picked += self._picked(bred, residuals, count - len(picked), seen)
        # Where all that was bred is known already, the domain may still have others.
        picked += new_ones(self._ground, samples(self._ground, rng), count - len(picked), seen) if not picked else []
        return sorted(picked, key=bred.log_seconds_of)

    def _residuals(self, measured: Sequence[Outcome]) -> Residuals:
        strategies = [one.strategy for one in measured]
        predicted = [one.seconds for one in self._ground.simulator.predict(strategies)] if strategies else []
        seconds = np.array([one.seconds for one in measured], dtype=np.float64)
        return residuals_of(self._likeness.vectors(strategies), np.log(seconds) - np.log(np.array(predicted)))

    def _known(self, bred: _Breeding, count: int, seen: set[str]) -> list[Candidate]:
        """The most promising presets."""
        found = sorted(bred.known(), key=lambda one: one.log_seconds)
        return new_ones(self._ground, ((one.origin, one.strategy) for one in found), count, seen)

    def _picked(self, bred: _Breeding, residuals: Residuals, count: int, seen: set[str]) -> list[Candidate]:
        """One after another: the fastest as predicted, then what might be fastest, given those before."""
        considered = bred.most_promising(NUM_CONSIDERED)
        picked: list[Candidate] = []
        while considered and len(picked) < count:
            if picked:
                _, spreads = residuals.correct(np.array([one.vector for one in considered]))
                own = np.array([one.spread for one in considered])
                hopes = np.array([one.log_seconds for one in considered]) - BOLDNESS * np.minimum(spreads, own)
            else:
                hopes = np.array([one.log_seconds for one in considered])
            one = considered.pop(int(np.argmin(hopes)))
            found = new_ones(self._ground, [(one.origin, one.strategy)], 1, seen)
            if found:
                picked += found
                residuals = residuals.believing(one.vector)
        return picked


class _Breeding:
    """All that is simulated for one round. Strategies for which the simulator says the very same are one."""

    def __init__(self, ground: Ground, likeness: Likeness, styles: Styles, residuals: Residuals) -> None:
        self._ground = ground
        self._likeness = likeness
        self._styles = styles
        self._residuals = residuals
        self._found: dict[float, _One] = {}
        self._known: list[_One] = []
        self._num_left = ground.num_simulated
        self._most_pieces = max(FEWEST_PIECES, PIECES_PER_VARIABLE * len(ground.model.variables))
        self._asked: set[int] = set()
        # Identities are keys as long as their strategies live.
        self._alive: list[Strategy] = []

    def breed(self, measured: Sequence[Outcome], rng: random.Random) -> None:
        """Simulate as many as there may be."""
        known = [(one.origin, one.strategy) for one in self._ground.known if one.strategy is not None]
        self._known = self._simulate(known)
        self._simulate([("measured", one.strategy) for one in measured])
        num_sampled = round(SHARE_SAMPLED * self._num_left)
        self._simulate(list(itertools.islice(samples(self._ground, rng), num_sampled // 2)))
        self._simulate([self._styled(rng) for _ in range(num_sampled // 2)])
        for left in range(NUM_GENERATIONS, 0, -1):
            parents = self.most_promising(NUM_PARENTS)
            self._simulate(list(itertools.islice(self._children(parents, rng), max(self._num_left, 0) // left)))

    def known(self) -> list[_One]:
        """The presets among them."""
        return self._known

    def most_promising(self, count: int) -> list[_One]:
        """Those that might be fastest."""
        return sorted(self._found.values(), key=lambda one: one.hope)[:count]

    def log_seconds_of(self, candidate: Candidate) -> float:
        """As predicted; what was not simulated comes last."""
        found = [one.log_seconds for one in self._found.values() if one.strategy is candidate.strategy]
        return min(found, default=float("inf"))

    def _styled(self, rng: random.Random) -> Sourced:
        return "styled", self._ground.domain.nearest(self._styles.strategy(self._styles.sample(rng)))

    def _children(self, parents: Sequence[_One], rng: random.Random) -> Iterator[Sourced]:
        domain = self._ground.domain
        while parents:
            parent = parents[min(rng.randrange(len(parents)) for _ in range(TOURNAMENT))]
            chance = rng.random()
            if chance < P_SAMPLE:
                yield "sampled", domain.sample(rng)
            elif chance < P_SAMPLE + P_STYLE:
                style = self._styles.changed(self._styles.style(parent.strategy), rng)
                yield "styled", domain.nearest(self._styles.strategy(style))
            elif chance < P_SAMPLE + P_STYLE + P_CROSS:
                yield "crossed", domain.crossover(parent.strategy, rng.choice(parents).strategy, rng)
            else:
                child = domain.mutate(parent.strategy, rng)
                while rng.random() < P_ANOTHER_CHANGE:
                    child = domain.mutate(child, rng)
                yield "mutated", child

    def _simulate(self, stream: Sequence[Sourced]) -> list[_One]:
        """Those of a stream that were not simulated yet."""
        fresh: list[Sourced] = []
        for origin, strategy in stream:
            if id(strategy) not in self._asked and self._likeness.num_pieces(strategy) <= self._most_pieces:
                self._asked.add(id(strategy))
                self._alive.append(strategy)
                fresh.append((origin, strategy))
            self._num_left -= 1
        strategies = [strategy for _, strategy in fresh]
        if not strategies:
            return []
        predictions = self._ground.simulator.predict(strategies)
        vectors = self._likeness.vectors(strategies)
        corrections, spreads = self._residuals.correct(vectors)
        made = [
            _One(
                origin,
                strategy,
                vectors[row],
                prediction.seconds,
                float(np.log(prediction.seconds) + corrections[row]),
                max(float(spreads[row]), prediction.spread),
            )
            for row, ((origin, strategy), prediction) in enumerate(zip(fresh, predictions, strict=True))
        ]
        for one in made:
            self._found.setdefault(one.seconds, one)
        return made
