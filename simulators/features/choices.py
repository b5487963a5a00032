"""Features of a strategy: what it chooses, weighted with the bytes that it chooses it for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.parts import Part, all_parts
from autosync.strategy.representation import (
    AllReduce,
    Message,
    ParameterServer,
    Periodic,
    Sharded,
    SparseGather,
    Strategy,
    SufficientFactors,
)

_TOPOLOGIES = ("native", "ring", "tree", "halving_doubling")
_SHARES = (
    *(f"all_reduce.{topology}" for topology in _TOPOLOGIES),
    "all_reduce.hierarchical",
    "server.updates",
    "server.adds_up",
    "server.proxy",
    "server.rows",
    *(f"sharded.{topology}" for topology in ("native", "ring", "halving_doubling")),
    "rows.native",
    "rows.ring",
    "factors.native",
    "factors.ring",
    "periodic",
    "codec",
    "sliced",
)

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
"""What the features are called, in their order."""


def choice_features(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Mapping[str, float]:
    """The features by name, in the order of `CHOICES`; that in which messages and parts are written has no meaning."""
    parts = all_parts(strategy, model)
    sizes = [float(sum(parts[name].num_bytes for name in message.parts)) for message in strategy.messages]
    total = sum(sizes)
    shares = dict.fromkeys(_SHARES, 0.0)
    for message, size in zip(strategy.messages, sizes, strict=True):
        for name in _kinds(message):
            shares[name] += size / total
    cut = sum(variables_by_name(model)[name].num_bytes for name in strategy.partitions)
    found = {
        **{f"strategy.{name}": share for name, share in shares.items()},
        "strategy.forward": float(strategy.overlap == "forward"),
        "strategy.cut": cut / total,
        "strategy.parts": math.log2(len(parts) / len(model.variables)),
        "strategy.messages": math.log2(len(strategy.messages) / len(model.variables)),
        "strategy.largest_message": max(sizes) / total,
        "strategy.lanes": math.log2(len({message.lane for message in strategy.messages})),
        "strategy.staleness": float(max(map(_staleness, strategy.messages))),
        "strategy.in_order_of_use": _in_order_of_use(strategy.messages, parts),
        "strategy.busiest_server": _busiest_server(strategy.messages, sizes, cluster),
    }
    assert tuple(found) == CHOICES, "every feature has its name"
    return found


def complexity(strategy: Strategy) -> float:
    """How complicated a strategy is: its messages, the cuts that it makes, and the lanes that it takes."""
    num_cuts = sum(len(partition.sizes) - 1 for partition in strategy.partitions.values())
    return float(len(strategy.messages) + num_cuts + len({message.lane for message in strategy.messages}))


def _kinds(message: Message) -> list[str]:
    """The shares that a message counts for."""
    found = _kinds_of_synchroniser(message)
    found += ["codec"] if message.codec is not None else []
    found += ["sliced"] if message.slice_bytes is not None else []
    return found


def _kinds_of_synchroniser(message: Message) -> list[str]:
    match message.synchroniser:
        case AllReduce(topology=topology, hierarchical=hierarchical):
            return [f"all_reduce.{topology}", *(["all_reduce.hierarchical"] if hierarchical else [])]
        case ParameterServer(update=update, local_proxy=proxy, sparse=sparse):
            found = ["server.updates" if update == "server" else "server.adds_up"]
            return [*found, *(["server.proxy"] if proxy else []), *(["server.rows"] if sparse else [])]
        case Sharded(topology=topology):
            return [f"sharded.{topology}"]
        case SparseGather(topology=topology):
            return [f"rows.{topology}"]
        case SufficientFactors(topology=topology):
            return [f"factors.{topology}"]
        case Periodic():
            return ["periodic"]


def _staleness(message: Message) -> int:
    synchroniser = message.synchroniser
    return synchroniser.staleness if isinstance(synchroniser, ParameterServer) else 0


def _in_order_of_use(messages: Sequence[Message], parts: Mapping[str, Part]) -> float:
    """How far urgent messages are those used first: the correlation of priorities and first uses, 0 without any."""
    priorities = np.array([message.priority for message in messages], dtype=np.float64)
    uses = np.array([min(parts[name].variable.use for name in one.parts) for one in messages], dtype=np.float64)
    if priorities.std() == 0 or uses.std() == 0:
        return 0.0
    return float(np.corrcoef(priorities, uses)[0, 1])


def _busiest_server(messages: Sequence[Message], sizes: Sequence[float], cluster: ClusterSpec) -> float:
    """How many times as long the busiest server is busy as if servers' bytes were shared out by their nodes' rates."""
    rates = {node.name: min(node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes}
    served: dict[str, float] = {}
    for message, size in zip(messages, sizes, strict=True):
        if isinstance(message.synchroniser, ParameterServer):
            served[message.synchroniser.server] = served.get(message.synchroniser.server, 0.0) + size
    if not served:
        return 0.0
    busiest = max(size / rates[name] for name, size in served.items())
    return busiest / (sum(served.values()) / sum(rates.values()))
