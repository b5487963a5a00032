"""The rates of a cluster's links and their expected rates. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator

from autosync.doctor.evidence import LinkRate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import nodes_behind


def link_rates(cluster: ClusterSpec) -> tuple[LinkRate, ...]:
    """Return the rates of all links: measured rates if the cluster was probed, else those of its file.

    A node's link should be as fast as the file says, and as fast as the links of the other nodes. An uplink should be
    as fast as the file says, and as fast as the links behind it, because in a ring as many bytes pass the uplink as
    pass each of these links. But no more can pass it than the nodes behind it and the rest of the cluster can take.
    """
    return tuple(_rates(cluster, "out")) + tuple(_rates(cluster, "in"))


def _rates(cluster: ClusterSpec, direction: str) -> Iterator[LinkRate]:
    is_out = direction == "out"
    calibration = cluster.calibration
    claimed = {node.name: node.bandwidth_out if is_out else node.bandwidth_in for node in cluster.nodes}
    measured = {}
    if calibration is not None:
        found = {node.name: node.rate_out if is_out else node.rate_in for node in calibration.nodes}
        measured = {name: one.value for name, one in found.items() if one is not None}
    rates = {**claimed, **measured}
    for name, rate in rates.items():
        others = [value for other, value in rates.items() if other != name]
        # With two nodes, the node at the other end may be the slow one.
        typical = statistics.median(others) if len(others) > 1 else 0.0
        yield LinkRate(
            kind="node",
            subject=name,
            direction="out" if is_out else "in",
            rate=rate,
            expected=max(claimed[name], typical),
            is_measured=name in measured,
            compared="the others have" if typical > claimed[name] else "its file says",
        )
    uplinks = {} if calibration is None else {rack.name: rack for rack in calibration.racks}
    for position, rack in enumerate(cluster.racks):
        nodes = nodes_behind(cluster)[position]
        if not nodes:
            continue
        claim = rack.uplink_out if is_out else rack.uplink_in
        probed = uplinks.get(rack.name)
        rate = claim if probed is None else (probed.rate_out if is_out else probed.rate_in).value
        behind = min(rates[cluster.nodes[node].name] for node in nodes)
        usual, compared = (behind, "the nodes behind it have") if behind > claim else (claim, "its file says")
        reach = _reach(cluster, position, is_out=is_out)
        yield LinkRate(
            kind="uplink",
            subject=rack.name,
            direction="out" if is_out else "in",
            rate=rate,
            expected=min(usual, reach),
            is_measured=probed is not None,
            compared=compared if usual <= reach else "the nodes at both ends could pass",
        )


def _reach(cluster: ClusterSpec, position: int, *, is_out: bool) -> float:
    """Return the rate at which a rack's nodes and the rest of the cluster can use its uplink, by the cluster file."""
    behind = nodes_behind(cluster)
    beyond = set(range(len(cluster.nodes))) - set(behind[position])
    rate = 0.0
    # The other racks beside it, and those beside its pod.
    pods = (None, cluster.racks[position].rack)
    for other, rack in enumerate(cluster.racks):
        if rack.rack in pods and not set(behind[other]) & set(behind[position]):
            beyond -= set(behind[other])
            uplink = rack.uplink_in if is_out else rack.uplink_out
            rate += min(uplink, _sum_of(cluster, behind[other], is_out=not is_out))
    rate += _sum_of(cluster, beyond, is_out=not is_out)
    return min(_sum_of(cluster, behind[position], is_out=is_out), rate) if rate else math.inf


def _sum_of(cluster: ClusterSpec, nodes: Iterable[int], *, is_out: bool) -> float:
    """Return the rates of the links of some nodes together."""
    found = [cluster.nodes[node] for node in sorted(nodes)]
    return sum(node.bandwidth_out if is_out else node.bandwidth_in for node in found)
