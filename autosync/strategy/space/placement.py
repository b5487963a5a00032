"""Placement: which node serves a message."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Literal

from autosync.specs.cluster import ClusterSpec
from autosync.strategy.representation import ParameterServer
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.choices import Setting, Variant

PlacementStyle = Literal["greedy", "softmax", "random", "one_node"]

PLACEMENT_WEIGHTS: dict[PlacementStyle, float] = {"greedy": 0.5, "softmax": 0.2, "random": 0.2, "one_node": 0.1}
"""`greedy`: the node that would be done first; `softmax`: likelier the more a node lacks of its share by bandwidth
(both from AutoSync); `random`; `one_node` serves all."""


def bandwidths_of(cluster: ClusterSpec) -> dict[str, float]:
    """The rate at which each node can serve: what comes in goes out again."""
    return {node.name: min(node.bandwidth_in, node.bandwidth_out) for node in cluster.nodes}


class Placement:
    """Places the messages of one step one after another, mindful of those before."""

    def __init__(self, rng: random.Random, bandwidths: Mapping[str, float], total_bytes: float) -> None:
        self._rng = rng
        self._style = draw_weighted(rng, PLACEMENT_WEIGHTS)
        self._bandwidths = bandwidths
        self._load = dict.fromkeys(bandwidths, 0.0)
        self._only = rng.random()
        # Softmax: one fair share more or less changes the odds by e^4.
        self._scale = 4 * len(bandwidths) / max(total_bytes, 1.0)

    def place(self, variant: Variant, num_bytes: float) -> Setting:
        """The setting of a variant at the node that shall serve."""
        if len(variant) == 1:
            return variant[0]
        names = [_server(setting) for setting in variant]
        index = self._draw(names, num_bytes)
        self._load[names[index]] += num_bytes
        return variant[index]

    def _draw(self, names: list[str], num_bytes: float) -> int:
        load, rates = self._load, self._bandwidths
        match self._style:
            case "greedy":
                done = [(load[name] + num_bytes) / rates[name] for name in names]
                return done.index(min(done))
            case "softmax":
                placed = sum(load[name] for name in names) + num_bytes
                rate = sum(rates[name] for name in names)
                lacks = [(placed * rates[name] / rate - load[name]) * self._scale for name in names]
                most = max(lacks)
                weights = [math.exp(lack - most) for lack in lacks]
                return self._rng.choices(range(len(names)), cum_weights=list(itertools.accumulate(weights)))[0]
            case "random":
                return int(self._rng.random() * len(names))
            case "one_node":
                return int(self._only * len(names))


def _server(setting: Setting) -> str:
    synchroniser = setting.synchroniser
    assert isinstance(synchroniser, ParameterServer), "only a server can be placed"
    return synchroniser.server
