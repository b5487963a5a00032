"""The clusters of benchmarks: ranks of this machine, and emulated hosts with links of given rates."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from autosync.specs.cluster import BackendName, ClusterSpec, Node

MEGABIT = 125_000.0
"""A megabit per second, in bytes per second."""


def on_this_machine(*devices: int, name: str = "here", backend: BackendName = "gloo") -> ClusterSpec:
    """Return a cluster on this machine with these numbers of ranks; a node with 0 ranks only serves."""
    nodes = [_node(f"n{number}", 800.0, count, host="localhost") for number, count in enumerate(devices)]
    return ClusterSpec(name=name, nodes=tuple(nodes), backend=backend)


def emulated(*megabits: float, devices: int = 1, servers: Sequence[float] = ()) -> ClusterSpec:
    """Return a cluster with worker hosts of these rates, then hosts that only serve, under a unique name."""
    nodes = [_node(f"n{number}", rate, devices) for number, rate in enumerate(megabits)]
    nodes += [_node(f"s{number}", rate, 0) for number, rate in enumerate(servers)]
    return ClusterSpec(name=f"bench-{secrets.token_hex(4)}", nodes=tuple(nodes), launcher="testbed")


def _node(name: str, megabits: float, devices: int, *, host: str | None = None) -> Node:
    rate = megabits * MEGABIT
    node = Node(name=name, host=host or name, devices=max(devices, 1), bandwidth_out=rate, bandwidth_in=rate)
    return node if devices else replace(node, devices=0, role="server")
