"""Draws the node that serves a message."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Mapping
from typing import Literal

from autosync.specs.cluster import ClusterSpec
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.choices import Setting, Variant

PlacementStyle = Literal["greedy", "softmax", "random", "one_node"]

PLACEMENT_WEIGHTS: dict[PlacementStyle, float] = {"greedy": 0.5, "softmax": 0.2, "random": 0.2, "one_node": 0.1}
"""`greedy`: the node that would finish first; `softmax`: the less of its share by bandwidth a node has, the likelier it
is drawn (both from AutoSync); `random`: any node; `one_node`: one node serves all messages."""

SOFTMAX_SLOPE = 4.0
"""A node with its fair share of all bytes is e^4 times less likely to be drawn than with no bytes."""


def bandwidths_of(cluster: ClusterSpec) -> dict[str, float]:
    """Return the rate at which each node can serve: that of its slower direction, as it sends what it receives."""
    return {node.name: min(node.bandwidth_in, node.bandwidth_out) for node in cluster.nodes}


class Placement:
    """Places the messages of one step, one after another, with regard to the messages placed before."""

    def __init__(self, rng: random.Random, bandwidths: Mapping[str, float], total_bytes: float) -> None:
        self._rng = rng
        self._style = draw_weighted(rng, PLACEMENT_WEIGHTS)
        self._only = rng.random()
        self._index = {name: index for index, name in enumerate(bandwidths)}
        self._rates = list(bandwidths.values())
        self._load = [0.0] * len(self._rates)
        all_rates = math.fsum(self._rates)
        self._fair = [max(total_bytes, 1.0) * rate / all_rates for rate in self._rates]
        self._weights = list(self._rates)
        self._nodes: dict[int, list[int]] = {}

    def place(self, variant: Variant, num_bytes: float) -> Setting:
        """Draw the node that serves a message of `num_bytes`, and return the variant's setting for this node."""
        if len(variant) == 1:
            return variant[0]
        # Variants live as long as the space, so their `id` can be the key; hashing their value would take much longer.
        nodes = self._nodes.get(id(variant))
        if nodes is None:
            nodes = self._nodes[id(variant)] = [self._index[_server(setting)] for setting in variant]
        position = self._draw(nodes, num_bytes)
        node = nodes[position]
        self._load[node] += num_bytes
        self._weights[node] = self._rates[node] * math.exp(-SOFTMAX_SLOPE * self._load[node] / self._fair[node])
        return variant[position]

    def _draw(self, nodes: list[int], num_bytes: float) -> int:
        match self._style:
            case "greedy":
                load, rates = self._load, self._rates
                done = [(load[node] + num_bytes) / rates[node] for node in nodes]
                return done.index(min(done))
            case "softmax":
                weights = list(itertools.accumulate([self._weights[node] for node in nodes]))
                return min(bisect.bisect(weights, self._rng.random() * weights[-1]), len(nodes) - 1)
            case "random":
                return int(self._rng.random() * len(nodes))
            case "one_node":
                return int(self._only * len(nodes))


def _server(setting: Setting) -> str:
    server = setting.synchroniser.served_by
    assert server is not None, "only a served message can be placed"
    return server
