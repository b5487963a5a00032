"""Features of a strategy: its choices, weighted with the bytes that each applies to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.parts import Part
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.synchronisers import shipped_classes

# Shipped learned simulators read these columns, so synchronisers of other packages have none.
_SHARES = (*(name for kind in shipped_classes() for name in kind.share_names()), "codec", "sliced")

CHOICES = (
    *(f"strategy.{name}" for name in _SHARES),
    "strategy.forward",
    "strategy.cut",
    "strategy.parts",
    "strategy.messages",
    "strategy.largest_message",
    "strategy.lanes",
    "strategy.staleness",
    "strategy.in_order_of_use",
    "strategy.busiest_server",
)
"""The names of the features, in their order."""


def choice_features(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Mapping[str, float]:
    """Return the features by name, in the order of `CHOICES`.

    The order of messages and parts in the file does not matter.
    """
    parts = all_parts(strategy, model)
    sizes = [float(sum(parts[name].num_bytes for name in message.parts)) for message in strategy.messages]
    total = sum(sizes)
    shares = dict.fromkeys(_SHARES, 0.0)
    for message, size in zip(strategy.messages, sizes, strict=True):
        for name in _shares_of(message):
            shares[name] += size / total
    cut = sum(variables_by_name(model)[name].num_bytes for name in strategy.partitions)
    found = {
        **{f"strategy.{name}": share for name, share in shares.items()},
        "strategy.forward": float(strategy.overlap == "forward"),
        "strategy.cut": cut / total,
        "strategy.parts": math.log2(len(parts) / len(model.variables)),
        "strategy.messages": math.log2(len(strategy.messages) / len(model.variables)),
        "strategy.largest_message": max(sizes) / total,
        "strategy.lanes": math.log2(strategy.num_lanes),
        "strategy.staleness": float(max(message.synchroniser.lag for message in strategy.messages)),
        "strategy.in_order_of_use": _in_order_of_use(strategy.messages, parts),
        "strategy.busiest_server": _busiest_server(strategy.messages, sizes, cluster),
    }
    assert tuple(found) == CHOICES, "every feature has its name"
    return found


def complexity(strategy: Strategy) -> float:
    """Return the complexity of a strategy: the sum of its messages, its cuts and its lanes."""
    num_cuts = sum(len(partition.sizes) - 1 for partition in strategy.partitions.values())
    return float(len(strategy.messages) + num_cuts + strategy.num_lanes)


def _shares_of(message: Message) -> list[str]:
    """Return the names of the shares to which a message's bytes count."""
    found = [name for name in message.synchroniser.shares if name in _SHARES]
    found += ["codec"] if message.codec is not None else []
    found += ["sliced"] if message.slice_bytes is not None else []
    return found


def _in_order_of_use(messages: Sequence[Message], parts: Mapping[str, Part]) -> float:
    """Return whether urgent messages are used first: the correlation of priorities and first uses, 0 if undefined."""
    priorities = np.array([message.priority for message in messages], dtype=np.float64)
    uses = np.array([min(parts[name].variable.use for name in one.parts) for one in messages], dtype=np.float64)
    if priorities.std() == 0 or uses.std() == 0:
        return 0.0
    return float(np.corrcoef(priorities, uses)[0, 1])


def _busiest_server(messages: Sequence[Message], sizes: Sequence[float], cluster: ClusterSpec) -> float:
    """Return how many times as long the busiest server works as if servers shared the bytes by their rates.

    0 without servers.
    """
    rates = {node.name: min(node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes}
    served: dict[str, float] = {}
    for message, size in zip(messages, sizes, strict=True):
        server = message.synchroniser.served_by
        if server is not None:
            served[server] = served.get(server, 0.0) + size
    if not served:
        return 0.0
    busiest = max(size / rates[name] for name, size in served.items())
    return busiest / (sum(served.values()) / sum(rates.values()))
