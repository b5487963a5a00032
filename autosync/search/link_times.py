"""The time that each link of a cluster takes for the bytes of a measured step.

Network interfaces count their bytes. Uplinks of racks and links within nodes do not, so their bytes are taken from
the plan. For an uplink they are scaled by the ratio of counted to planned bytes at the interfaces of its nodes, because
headers and rows of sparse gradients add bytes. What the ranks of a node share inside it has bytes of both kinds. Rates
are the probed ones, else those of the cluster file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autosync.datasets.schema import Measurement
from autosync.plan.lowering import lower
from autosync.plan.traffic import Traffic, amortised_traffic
from autosync.runtime.varying.expected_bytes import expected_traffic
from autosync.search.candidates import default_as_strategy
from autosync.specs.calibration import Estimate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.link_calibration import measured_node, measured_racks
from autosync.specs.links import inside_name, interface_name, uplink_name
from autosync.specs.model import ModelSpec
from autosync.specs.uplinks import NO_RACK, nodes_behind, outermost_racks
from autosync.strategy.representation import Strategy


class LinkTime(NamedTuple):
    """The name of a link, and the time that it takes for the bytes of a step."""

    link: str
    seconds: float


def busiest_link(
    measurement: Measurement, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy | None
) -> LinkTime | None:
    """Return the link that takes longest; None if bytes are not counted.

    Without a strategy, return the link for stock DDP as it ships.
    """
    return max(link_times(measurement, model, cluster, strategy), key=lambda load: load.seconds, default=None)


def link_times(
    measurement: Measurement, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy | None
) -> list[LinkTime]:
    """Return the time of each link, as `busiest_link` compares them; empty if bytes are not counted."""
    if measurement.bytes_sent is None or measurement.bytes_received is None or len(cluster.nodes) < 2:
        return []
    counted = _by_node(cluster, measurement.bytes_sent), _by_node(cluster, measurement.bytes_received)
    loads = list(_interfaces(cluster, counted))
    if cluster.racks or any(node.intra_bandwidth or node.intra_total for node in cluster.nodes):
        run = strategy or default_as_strategy(model, cluster).strategy
        assert run is not None, "what stock DDP does is a strategy too"
        plan = lower(run, model, cluster)
        # Stock DDP sends every gradient in every step.
        planned = amortised_traffic(plan, cluster) if strategy is None else expected_traffic(plan, model, cluster)
        loads += [*_uplinks(cluster, counted, planned), *_insides(cluster, counted, planned)]
    return loads


_Counted = tuple[dict[int, float], dict[int, float]]
"""Bytes out of nodes and bytes into nodes, by the positions of the nodes."""


def _by_node(cluster: ClusterSpec, num_bytes: Sequence[float]) -> dict[int, float]:
    """Return the bytes of each node. The ranks of a node share one interface, and each reports its count."""
    found: dict[int, float] = {}
    for rank, amount in zip(cluster.ranks, num_bytes, strict=False):
        found[rank.node] = max(amount, found.get(rank.node, 0.0))
    return found


def _interfaces(cluster: ClusterSpec, counted: _Counted) -> Iterator[LinkTime]:
    out, into = counted
    for position, node in enumerate(cluster.nodes):
        probed = measured_node(cluster, node.name)
        rate_out = _rate(node.bandwidth_out, probed.rate_out if probed else None)
        rate_in = _rate(node.bandwidth_in, probed.rate_in if probed else None)
        yield LinkTime(interface_name(node.name, "out"), out.get(position, 0.0) / rate_out)
        yield LinkTime(interface_name(node.name, "in"), into.get(position, 0.0) / rate_in)


def _uplinks(cluster: ClusterSpec, counted: _Counted, planned: Traffic) -> Iterator[LinkTime]:
    out, into = counted
    probed = measured_racks(cluster)
    behind = nodes_behind(cluster)
    for position, rack in enumerate(cluster.racks):
        nodes = behind[position]
        one = probed.get(rack.name)
        more_out = _times_planned(nodes, out, planned.node_out.tolist())
        more_in = _times_planned(nodes, into, planned.node_in.tolist())
        rate_out = _rate(rack.uplink_out, one.rate_out if one else None)
        rate_in = _rate(rack.uplink_in, one.rate_in if one else None)
        yield LinkTime(uplink_name(rack.name, "out"), more_out * float(planned.rack_out[position]) / rate_out)
        yield LinkTime(uplink_name(rack.name, "in"), more_in * float(planned.rack_in[position]) / rate_in)


def _times_planned(nodes: Sequence[int], counted: dict[int, float], planned: Sequence[float]) -> float:
    """Return the ratio of counted to planned bytes at some nodes' interfaces. Nodes of servers may have no count."""
    told = [number for number in nodes if number in counted]
    expected = sum(planned[number] for number in told)
    return sum(counted[number] for number in told) / expected if expected > 0 else 1.0


def _insides(cluster: ClusterSpec, counted: _Counted, planned: Traffic) -> Iterator[LinkTime]:
    """Yield the time of the links within each node, or of what its ranks share there if that takes longer.

    Each rank of a node has its own link to the others, all with the same rate. So the mean over the ranks is a lower
    limit for the busiest link.
    """
    passing = through_shared(cluster, planned, counted)
    for position, node in enumerate(cluster.nodes):
        times = []
        if node.intra_bandwidth and node.devices > 1:
            probed = measured_node(cluster, node.name)
            rate = _rate(node.intra_bandwidth, probed.rate_within if probed else None) * node.devices
            times.append(float(planned.node_within[position]) / rate)
        if node.intra_total:
            times.append(passing[position] / node.intra_total)
        if times:
            yield LinkTime(inside_name(node.name), max(times))


def through_shared(cluster: ClusterSpec, planned: Traffic, counted: _Counted | None = None) -> list[float]:
    """Return the bytes that pass what the ranks of each node share inside it (`intra_total`).

    These are the bytes within the node, and those between it and others that leave no rack (docs/cluster.md). The nodes
    of a rack are taken to send the same share of their bytes out of it. Bytes at interfaces are the counted ones, where
    there are some.
    """
    found: list[float] = planned.node_within.tolist()
    ways = (planned.node_out.tolist(), planned.rack_out.tolist()), (planned.node_in.tolist(), planned.rack_in.tolist())
    behind, outermost = nodes_behind(cluster), outermost_racks(cluster)
    for way, (of_nodes, of_racks) in enumerate(ways):
        for position, rack in enumerate(outermost):
            passed = counted[way].get(position, of_nodes[position]) if counted else of_nodes[position]
            whole = math.fsum(of_nodes[node] for node in behind[rack]) if rack != NO_RACK else 0.0
            leaves = min(of_racks[rack] / whole, 1.0) if whole > 0 else 0.0
            found[position] += passed * (1.0 - leaves)
    return found


def _rate(claimed: float, probed: Estimate | None) -> float:
    return claimed if probed is None or probed.value <= 0 else probed.value
