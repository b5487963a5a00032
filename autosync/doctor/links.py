"""The rates of a cluster's links and their expected rates. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from autosync.doctor.evidence import LinkRate
from autosync.specs.cluster import ClusterSpec


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
    for rack in cluster.racks:
        claim = rack.uplink_out if is_out else rack.uplink_in
        probed = uplinks.get(rack.name)
        rate = claim if probed is None else (probed.rate_out if is_out else probed.rate_in).value
        behind = min(rates[node.name] for node in cluster.nodes if node.rack == rack.name)
        usual, compared = (behind, "the nodes behind it have") if behind > claim else (claim, "its file says")
        reach = _reach(cluster, rack.name, is_out=is_out)
        yield LinkRate(
            kind="uplink",
            subject=rack.name,
            direction="out" if is_out else "in",
            rate=rate,
            expected=min(usual, reach),
            is_measured=probed is not None,
            compared=compared if usual <= reach else "the nodes at both ends could pass",
        )


def _reach(cluster: ClusterSpec, name: str, *, is_out: bool) -> float:
    """Return the rate at which a rack's nodes and the rest of the cluster can use its uplink, by the cluster file."""
    others = [
        min(rack.uplink_in if is_out else rack.uplink_out, _sum_of(cluster, rack.name, is_out=not is_out))
        for rack in cluster.racks
        if rack.name != name
    ]
    beyond = sum(others) + _sum_of(cluster, None, is_out=not is_out)
    return min(_sum_of(cluster, name, is_out=is_out), beyond) if beyond else math.inf


def _sum_of(cluster: ClusterSpec, rack: str | None, *, is_out: bool) -> float:
    """Return the rates of the links of a rack's nodes together; of the nodes without a rack for None."""
    return sum(node.bandwidth_out if is_out else node.bandwidth_in for node in cluster.nodes if node.rack == rack)
