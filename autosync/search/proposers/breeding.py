"""Breeding: thousands of simulated strategies in generations, each bred from the most promising ones before it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.search.proposers.history import Sourced, TriedStrategy, samples
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.likeness import Floats, Likeness
from autosync.search.proposers.style import Styles
from autosync.simulators.interface import Simulator
from autosync.simulators.learned.residuals import Residuals, residuals_of
from autosync.strategy.representation import Strategy

TOURNAMENT = 2
P_SAMPLE = 0.05
P_STYLE = 0.2
P_CROSS = 0.15
P_ANOTHER_CHANGE = 0.5

FEWEST_PIECES = 200
PIECES_PER_VARIABLE = 3
"""The limit of pieces for each variable. A strategy with more pieces than this and than `FEWEST_PIECES` is left out,
because its step is mostly overhead and takes long to simulate."""

BOLDNESS = 1.0
"""The weight of uncertainty in the ranking: a strategy is ranked by its predicted time minus this many standard
deviations."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A simulated strategy with two predicted times.

    `seconds` is the simulator's prediction, and `log_seconds` is its logarithm corrected by measurements.
    """

    origin: str
    strategy: Strategy
    vector: Floats
    seconds: float
    log_seconds: float
    spread: float

    @property
    def hope(self) -> float:
        """The logarithm of the time that the strategy might reach."""
        return self.log_seconds - BOLDNESS * self.spread


class Judge:
    """A simulator whose predictions are corrected by its errors on measured strategies."""

    def __init__(self, simulator: Simulator, likeness: Likeness, measured: Sequence[TriedStrategy]) -> None:
        self._simulator = simulator
        self._likeness = likeness
        strategies = [one.strategy for one in measured]
        predicted = [one.seconds for one in simulator.predict(strategies)] if strategies else []
        self.measured_seconds = frozenset(predicted)
        """The predictions for the measured strategies."""
        seconds = np.array([one.seconds for one in measured], dtype=np.float64)
        self.residuals: Residuals = residuals_of(
            likeness.vectors(strategies), np.log(seconds) - np.log(np.array(predicted, dtype=np.float64))
        )

    def judge(self, sourced: Sequence[Sourced]) -> list[Judged]:
        """Return one judged strategy for each given one, in the same order."""
        if not sourced:
            return []
        strategies = [strategy for _, strategy in sourced]
        predictions = self._simulator.predict(strategies)
        vectors = self._likeness.vectors(strategies)
        corrections, spreads = self.residuals.correct(vectors)
        return [
            Judged(
                origin,
                strategy,
                vectors[row],
                prediction.seconds,
                float(np.log(prediction.seconds) + corrections[row]),
                max(float(spreads[row]), prediction.spread),
            )
            for row, ((origin, strategy), prediction) in enumerate(zip(sourced, predictions, strict=True))
        ]


class Breeding:
    """The breeding of one round, which simulates at most `most` strategies.

    If the simulator predicts exactly the same time for several strategies, the first `twins` of them are kept, and the
    first has children.
    """

    def __init__(
        self, ground: Ground, judge: Judge, likeness: Likeness, styles: Styles, *, most: int, twins: int = 1
    ) -> None:
        self._ground = ground
        self._judge = judge
        self._likeness = likeness
        self._styles = styles
        self._num_left = most
        self._twins = twins
        self._most_pieces = max(FEWEST_PIECES, PIECES_PER_VARIABLE * len(ground.model.variables))
        self._found: dict[float, list[Judged]] = {}
        # A pool yields the same strategies repeatedly. An id() is a safe key, because the dictionary keeps its strategy
        # alive.
        self._asked: dict[int, Strategy] = {}

    def begin(self, parents: Sequence[Sourced], rng: random.Random, *, share_sampled: float) -> None:
        """Judge the presets, `parents` and samples.

        Samples get the share `share_sampled` of what may still be simulated.
        """
        known = ((one.origin, one.strategy) for one in self._ground.known)
        self.add([(origin, strategy) for origin, strategy in known if strategy is not None and not strategy.stages])
        self.add(parents)
        num_sampled = max(round(share_sampled * self._num_left), 0)
        self.add(list(itertools.islice(samples(self._ground, rng), num_sampled // 2)))
        self.add([self._styled(rng) for _ in range(num_sampled // 2)])

    def add(self, sourced: Sequence[Sourced]) -> None:
        """Judge strategies, except for those judged before, with too many pieces or with stages (see `divisions`)."""
        self._num_left -= len(sourced)
        fresh: list[Sourced] = []
        for origin, strategy in sourced:
            if id(strategy) in self._asked or strategy.stages:
                continue
            if self._likeness.num_pieces(strategy) <= self._most_pieces:
                self._asked[id(strategy)] = strategy
                fresh.append((origin, strategy))
        for one in self._judge.judge(fresh):
            twins = self._found.setdefault(one.seconds, [])
            if len(twins) < self._twins:
                twins.append(one)

    def evolve(self, rng: random.Random, *, num_generations: int, num_parents: int) -> None:
        """Judge generations of children of the most promising strategies, up to the limit of simulated strategies."""
        for left in range(num_generations, 0, -1):
            parents = _most_promising([twins[0] for twins in self._found.values()], num_parents)
            self.add(list(itertools.islice(self._children(parents, rng), max(self._num_left, 0) // left)))

    def most_promising(self, count: int) -> list[Judged]:
        """Return the strategies that might be fastest."""
        return _most_promising(itertools.chain.from_iterable(self._found.values()), count)

    def _styled(self, rng: random.Random) -> Sourced:
        return "styled", self._ground.domain.nearest(self._styles.strategy(self._styles.sample(rng)))

    def _children(self, parents: Sequence[Judged], rng: random.Random) -> Iterator[Sourced]:
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


def _most_promising(judged: Iterable[Judged], count: int) -> list[Judged]:
    return sorted(judged, key=lambda one: one.hope)[:count]
