"""Domains: the strategies that may be tried, either the space of a model on a cluster or a recorded pool."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.runtime.session.support import unsupported
from autosync.search.node_memory import NodeMemory
from autosync.search.proposers.likeness import Likeness
from autosync.simulators.learned.residuals import distances
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space

P_NEXT = 0.3
"""The chance to draw the nearest strategy of a pool; else the next nearest is drawn with this chance, and so on."""


@dataclass(frozen=True, kw_only=True)
class SpaceDomain:
    """All strategies of a space that the engine can run and that fit into the nodes' memory.

    Presets outside the grid of the limits (for example with their own slice size) may be tried too, and lossy or stale
    ones only where the limits allow them. `plan_of` lowers a strategy: a study passes the function of its preparer.
    """

    space: Space
    plan_of: Callable[[Strategy], Plan] | None = None

    def sample(self, rng: random.Random) -> Strategy:
        return self.space.sample(rng)

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        return self.space.mutate(strategy, rng)

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        return self.space.crossover(first, second, rng)

    def nearest(self, strategy: Strategy) -> Strategy:
        return strategy

    def contains(self, strategy: Strategy) -> bool:
        model, cluster = self.space.model, self.space.cluster
        if not strategy.classes <= {"exact", *self.space.limits.allow}:
            return False
        if strategy.stages and self.space.stages is None:
            return False
        if legality.problems(strategy, model, cluster):
            return False
        plan_of = self.plan_of or (lambda strategy: lower(strategy, model, cluster))
        plan = plan_of(strategy)
        return not unsupported(plan) and NodeMemory(model, cluster).fits(plan)


class PoolDomain:
    """The strategies of a recorded pool. Each operation returns a member of the pool.

    A mutation returns a member near the given strategy, and a crossover returns a member near both parents.
    """

    def __init__(self, space: Space, members: Sequence[Strategy]) -> None:
        assert members, "a pool has members"
        self._space = space
        self._members = list(members)
        self._likeness = Likeness(space.model, space.cluster)
        self._vectors = self._likeness.vectors(self._members)
        self._ids = {strategy_id(member, space.model, space.cluster) for member in members}

    def sample(self, rng: random.Random) -> Strategy:
        return rng.choice(self._members)

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        return self._near([strategy], rng)

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        return self._near([first, second], rng)

    def nearest(self, strategy: Strategy) -> Strategy:
        return self._by_distance([strategy])[0]

    def contains(self, strategy: Strategy) -> bool:
        return strategy_id(strategy, self._space.model, self._space.cluster) in self._ids

    def _near(self, strategies: Sequence[Strategy], rng: random.Random) -> Strategy:
        """Return a member near all given strategies and, where possible, different from each of them."""
        found = [member for member in self._by_distance(strategies) if member not in strategies] or self._members
        for member in found:
            if rng.random() < P_NEXT:
                return member
        return rng.choice(found)

    def _by_distance(self, strategies: Sequence[Strategy]) -> list[Strategy]:
        far = distances(self._likeness.vectors(strategies), self._vectors).sum(axis=0)
        return [self._members[position] for position in np.argsort(far, kind="stable")]
