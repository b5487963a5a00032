"""Clusters with unlike links, what no all-reduce on them can beat, and what one over trees takes by its bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autosync.plan.traffic import transfer_traffic
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.uplinks import nodes_behind
from autosync.strategy.shapes.trees import TreeShape
from tests.helpers.transfers import plain_transfer

GIGABIT = 125e6
NUM_ELEMENTS = 12_000_000
ITEM_BYTES = 4
RATES = ("bandwidth_out", "bandwidth_in")
UPLINK_RATES = ("uplink_out", "uplink_in")


def node(name: str, rack: str | None, out: float = 1.0, into: float | None = None, *, devices: int = 1) -> Node:
    """A node with rates in Gbit/s; one without devices serves."""
    return Node(
        name=name,
        host=name,
        role="worker" if devices else "server",
        devices=devices,
        bandwidth_out=out * GIGABIT,
        bandwidth_in=(out if into is None else into) * GIGABIT,
        rack=rack,
    )


def rack(name: str, out: float = 0.5, into: float | None = None, *, pod: str | None = None) -> Rack:
    return Rack(name=name, uplink_out=out * GIGABIT, uplink_in=(out if into is None else into) * GIGABIT, rack=pod)


def cluster(nodes: list[Node], *racks: Rack) -> ClusterSpec:
    return ClusterSpec(name="test", nodes=tuple(nodes), racks=racks)


def racks_of(*sizes: int, uplink: float = 0.5) -> ClusterSpec:
    """Racks of so many hosts at 1 Gbit/s."""
    nodes = [node(f"n{place}{one}", f"r{place}") for place, size in enumerate(sizes) for one in range(size)]
    return cluster(nodes, *[rack(f"r{place}", uplink) for place in range(len(sizes))])


def pods_of(*pods: tuple[int, ...], uplink: float = 1.0, pod_uplink: float = 0.5) -> ClusterSpec:
    """Pods of racks of so many hosts at 1 Gbit/s."""
    places = [
        (f"p{pod}", f"p{pod}r{place}", size) for pod, sizes in enumerate(pods) for place, size in enumerate(sizes)
    ]
    nodes = [node(f"{name}n{one}", name) for _, name, size in places for one in range(size)]
    racks = [rack(f"p{pod}", pod_uplink) for pod in range(len(pods))]
    return cluster(nodes, *racks, *[rack(name, uplink, pod=pod) for pod, name, _ in places])


UNLIKE: Mapping[str, ClusterSpec] = {
    "two racks, even": racks_of(2, 2),
    "two racks, uneven": racks_of(3, 2),
    "three racks": racks_of(2, 2, 1),
    "an uplink slow in one direction": cluster(
        [node("a", "x"), node("b", "x"), node("c", "y"), node("d", "y")], rack("x", 0.3, 1.0), rack("y", 1.0)
    ),
    "one slow host": cluster(
        [node("a", "x"), node("b", "x"), node("c", "x", 0.3), node("d", "y"), node("e", "y")], rack("x"), rack("y")
    ),
    "three speeds": cluster(
        [node("a", "x"), node("b", "x", 0.5), node("c", "x", 0.25), node("d", "y"), node("e", "y", 0.5)],
        rack("x"),
        rack("y"),
    ),
    "asymmetric interfaces": cluster(
        [node("a", "x", 1.0, 0.5), node("b", "x", 0.5, 1.0), node("c", "y", 1.0, 0.5), node("d", "y", 0.5, 1.0)],
        rack("x"),
        rack("y"),
    ),
    "two ranks a host": cluster(
        [node(name, home, devices=2) for name, home in (("a", "x"), ("b", "x"), ("c", "y"))], rack("x"), rack("y")
    ),
    "spare servers": cluster(
        [*[node(name, "x") for name in "abcd"], *[node(name, "x", devices=0) for name in "st"]], rack("x")
    ),
    "spare servers in two racks": cluster(
        [node("a", "x"), node("b", "x"), node("c", "y"), node("d", "y"), node("s", "x", devices=0)],
        rack("x"),
        rack("y"),
    ),
    "eight hosts in four racks": racks_of(2, 2, 2, 2),
    "fat uplinks": racks_of(3, 3, uplink=10.0),
    "a host without a rack": cluster([node("a", "x"), node("b", "x"), node("c", None)], rack("x")),
    "two pods of two racks": pods_of((2, 2), (2, 2)),
    "uneven pods": pods_of((3, 2), (2,), pod_uplink=0.7),
    "slow racks in pods": pods_of((2, 2), (2, 2), (2, 2), uplink=0.4, pod_uplink=1.0),
    "a host in a pod without a rack": cluster(
        [node("a", "x"), node("b", "x"), node("c", "pod"), node("d", "y"), node("e", "y")],
        rack("pod", 0.7),
        rack("x", 0.5, pod="pod"),
        rack("y"),
    ),
    "64 hosts in 8 racks in 2 pods": pods_of((8,) * 4, (8,) * 4, uplink=4.0, pod_uplink=4.0),
    "64 hosts in 8 racks": racks_of(*[8] * 8, uplink=2.0),
}


def bound_seconds(found: ClusterSpec, num_bytes: float) -> float:
    """What no all-reduce over trees beats.

    All of the data passes each worker node and each rack with workers in both directions. Between n nodes, or racks, it
    is sent 2(n-1) times in all. A server takes over sends to workers, but adds two of its own for each n that it takes
    part in, so that its interface counts (n-2)/n times.
    """
    workers = [one for one in found.nodes if one.role == "worker"]
    servers = [one for one in found.nodes if one.role == "server"]
    behind = dict(zip(found.racks, nodes_behind(found), strict=True))
    inside = {one: sum(found.nodes[place].role == "worker" for place in places) for one, places in behind.items()}
    racks = [one for one in found.racks if one.rack is None and inside[one]]
    terms = [1 / min(one.bandwidth_out, one.bandwidth_in) for one in workers]
    terms += [1 / min(one.uplink_out, one.uplink_in) for one in found.racks if 0 < inside[one] < len(workers)]
    n = len(workers)
    both = [math.fsum(one.bandwidth_out + one.bandwidth_in for one in nodes) for nodes in (workers, servers)]
    terms.append(4 * (n - 1) / (both[0] + (n - 2) / n * both[1]))
    if not servers:
        terms += [2 * (n - 1) / math.fsum(getattr(one, rate) for one in workers) for rate in RATES]
    if sum(len(behind[one]) for one in racks) == len(found.nodes):
        terms += [2 * (len(racks) - 1) / math.fsum(getattr(one, rate) for one in racks) for rate in UPLINK_RATES]
    # Racks in pods among themselves, if every worker is in one; data between two of them passes both uplinks.
    inner = [one for one in found.racks if one.rack is not None]
    if sum(inside[one] for one in inner) == len(workers) and not servers:
        terms += [2 * (len(inner) - 1) / math.fsum(getattr(one, rate) for one in inner) for rate in UPLINK_RATES]
    return num_bytes * max(terms)


def tree_seconds(found: ClusterSpec, shape: TreeShape) -> float:
    """How long the busiest interface or uplink needs for its bytes of an all-reduce of `NUM_ELEMENTS`."""
    transfer = plain_transfer("all_reduce", shape, tuple(range(shape.num_ranks)), NUM_ELEMENTS, item_bytes=ITEM_BYTES)
    traffic = transfer_traffic(transfer, found)
    num_bytes = np.concatenate((traffic.node_out, traffic.node_in, traffic.rack_out, traffic.rack_in))
    rates = [
        *(one.bandwidth_out for one in found.nodes),
        *(one.bandwidth_in for one in found.nodes),
        *(one.uplink_out for one in found.racks),
        *(one.uplink_in for one in found.racks),
    ]
    return float((num_bytes / rates).max())
