"""Draws and changes the shares of the batch, where devices of the cluster compute at different speeds.

Drawn shares follow the speeds: each rank's rate is its speed to some power, times a random factor. Half of all
strategies have even shares. A change moves some examples from one rank to another, draws new shares, or makes them
even.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.shares import deal, global_batch
from autosync.strategy.space.limits import Limits

P_EVEN = 0.5
P_MOVE = 0.7
POWERS = (0.5, 0.75, 1.0, 1.0, 1.25)
SPREADS = (0.0, 0.1, 0.3)
"""The standard deviations of the logarithm of the random factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The shares that strategies of a space may have: `num_examples` over ranks with these speeds."""

    num_examples: int
    speeds: tuple[float, ...]

    def draw(self, rng: random.Random) -> tuple[int, ...]:
        """Draw shares; none if they are even."""
        return () if rng.random() < P_EVEN else self._drawn(rng)

    def _drawn(self, rng: random.Random) -> tuple[int, ...]:
        power, spread = rng.choice(POWERS), rng.choice(SPREADS)
        return deal(self.num_examples, [speed**power * math.exp(rng.gauss(0, spread)) for speed in self.speeds])

    def change(self, shares: Sequence[int], rng: random.Random) -> tuple[int, ...]:
        """Return other shares than these, mostly near them."""
        if not shares:
            return self._drawn(rng)
        if rng.random() >= P_MOVE:
            return self.draw(rng)
        changed = list(shares)
        giver = rng.choice([rank for rank, share in enumerate(shares) if share > 1])
        taker = rng.choice([rank for rank in range(len(shares)) if rank != giver])
        most = max(1, min(changed[giver] - 1, changed[giver] // 4))
        count = rng.randint(1, most)
        changed[giver] -= count
        changed[taker] += count
        return tuple(changed)

    def log10_size(self) -> float:
        """Return the decimal logarithm of the number of divisions of the batch."""
        return math.log10(math.comb(self.num_examples - 1, len(self.speeds) - 1))


def division_of(model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> Division | None:
    """Return the division of a space; None if all its strategies have even shares."""
    # Graphs are dealt by cost instead (see `batching_choice`).
    if not limits.shares or not cluster.is_uneven or model.batch_size < 2 or model.graphs is not None:
        return None
    speeds = tuple([cluster.nodes[rank.node].compute for rank in cluster.ranks[: cluster.num_workers]])
    return Division(num_examples=global_batch(model, cluster), speeds=speeds)


def divided(strategy: Strategy, shares: tuple[int, ...]) -> Strategy:
    """Return the strategy with these shares, or with even ones if a synchroniser refuses uneven ones."""
    if any(message.synchroniser.refuses_shares for message in strategy.messages):
        shares = ()
    return strategy if strategy.shares == shares else replace(strategy, name="", shares=shares)
