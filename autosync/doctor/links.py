"""The rates of a cluster's links, and the rates that are expected of them. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from autosync.doctor.evidence import LinkRate
from autosync.specs.cluster import ClusterSpec


def link_rates(cluster: ClusterSpec) -> tuple[LinkRate, ...]:
    """Return the rates of all links: measured ones if the cluster was probed, else those of its file.

    A node's link is expected to be as fast as its file says, and as those of the other nodes. An uplink is expected to
    be as fast as its file says, and as the links behind it, for in a ring as much passes it as passes each of them.
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
        # With two nodes, the other end may be what makes a link slow.
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
        yield LinkRate(
            kind="uplink",
            subject=rack.name,
            direction="out" if is_out else "in",
            rate=rate,
            expected=max(claim, behind),
            is_measured=probed is not None,
            compared="the nodes behind it have" if behind > claim else "its file says",
        )
