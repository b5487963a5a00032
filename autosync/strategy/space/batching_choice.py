"""Draws and changes the batching of a model whose graph changes.

A profile has measured each policy by itself, so most draws take one of the fastest. The others stay in the space: a
policy that computes the weights' gradients last is fast alone, and leaves messages less time to hide behind compute.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from autosync.specs.cluster import ClusterSpec
from autosync.specs.graph_batching import Dealing, GraphBatching
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.limits import Limits

SHARPNESS = 8.0
"""A policy that takes twice as long is drawn 2 to the power of so many times less often."""

WEIGHT_OF_COST = 3.0
"""Examples are dealt by cost so many times as often as by count, if the profile says that this is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingChoice:
    """The batchings that strategies of a space may have, with their chances."""

    weights: tuple[tuple[GraphBatching, float], ...]

    def draw(self, rng: random.Random) -> GraphBatching:
        return draw_weighted(rng, dict(self.weights))

    def change(self, batching: GraphBatching | None, rng: random.Random) -> GraphBatching:
        """Return another batching than this, if there is another."""
        others = {one: weight for one, weight in self.weights if one != batching}
        return draw_weighted(rng, others or dict(self.weights))

    def log10_size(self) -> float:
        return math.log10(len(self.weights))


def batching_choice(model: ModelSpec, cluster: ClusterSpec, limits: Limits) -> BatchingChoice | None:
    """Return the batchings of a space; None if all its strategies leave it to the model."""
    graphs = model.graphs
    if graphs is None or not limits.batching:
        return None
    fastest = min(one.seconds for one in graphs.policies)
    dealings: dict[Dealing, float] = {"count": 1.0}
    if graphs.knows_dealing and cluster.num_workers > 1:
        by_cost, by_count = (graphs.dealing_factor(one, cluster.num_workers) for one in ("cost", "count"))
        wins = by_cost < by_count
        dealings["cost"] = WEIGHT_OF_COST if wins else 1.0 / WEIGHT_OF_COST
    found = []
    for one in graphs.policies:
        for dealing, weight in dealings.items():
            batching = GraphBatching(order=one.order, lazy_weights=one.lazy_weights, dealing=dealing)
            found.append((batching, weight * (fastest / one.seconds) ** SHARPNESS))
    return BatchingChoice(weights=tuple(found)) if len(found) > 1 else None


def batched(strategy: Strategy, batching: GraphBatching | None) -> Strategy:
    """Return the strategy with this batching. Examples are dealt by count if its ranks train apart (see `legality`)."""
    if batching is not None and any(message.synchroniser.trains_apart for message in strategy.messages):
        batching = replace(batching, dealing="count")
    return strategy if strategy.batching == batching else replace(strategy, name="", batching=batching)
