"""The rates of a cluster's links and their expected rates. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from autosync.doctor.evidence import LinkRate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import nodes_behind


def link_rates(cluster: ClusterSpec) -> tuple[LinkRate, ...]:
    """Return the rates of all links: measured rates if the cluster was probed, else those of its file.

    Only links between workers count, because stock DDP uses no others. A worker's link should be as fast as the file
    says, and as fast as the links of the other workers. An uplink should be as fast as the file says, and as fast as
    the links of the workers behind it, because in a ring as many bytes pass the uplink as pass each of these links. But
    no more can pass it than the workers behind it and the other workers can take.
    """
    return tuple(_rates(cluster, "out")) + tuple(_rates(cluster, "in"))


def _rates(cluster: ClusterSpec, direction: str) -> Iterator[LinkRate]:
    is_out = direction == "out"
    calibration = cluster.calibration
    workers = [node for node in cluster.nodes if node.role == "worker"]
    claimed = {node.name: node.bandwidth_out if is_out else node.bandwidth_in for node in workers}
    measured = {}
    if calibration is not None:
        found = {node.name: node.rate_out if is_out else node.rate_in for node in calibration.nodes}
        measured = {name: one.value for name, one in found.items() if one is not None and name in claimed}
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
    behind = [{node for node in nodes if cluster.nodes[node].role == "worker"} for nodes in nodes_behind(cluster)]
    for position, rack in enumerate(cluster.racks):
        if len(behind[position]) in (0, len(workers)):
            continue
        claim = rack.uplink_out if is_out else rack.uplink_in
        one = uplinks.get(rack.name)
        probed = None if one is None else one.rate_out if is_out else one.rate_in
        rate = claim if probed is None else probed.value
        least = min(rates[cluster.nodes[node].name] for node in behind[position])
        usual, compared = (least, "the nodes behind it have") if least > claim else (claim, "its file says")
        reach = _reach(cluster, position, behind, is_out=is_out)
        yield LinkRate(
            kind="uplink",
            subject=rack.name,
            direction="out" if is_out else "in",
            rate=rate,
            expected=min(usual, reach),
            is_measured=probed is not None,
            compared=compared if usual <= reach else "the nodes at both ends could pass",
        )


def _reach(cluster: ClusterSpec, position: int, behind: Sequence[set[int]], *, is_out: bool) -> float:
    """Return the rate at which the workers behind a rack and all others can use its uplink, by the cluster file."""
    beyond = {number for number, node in enumerate(cluster.nodes) if node.role == "worker"} - behind[position]
    rate = 0.0
    # The other racks beside it, and those beside its pod.
    pods = (None, cluster.racks[position].rack)
    for other, rack in enumerate(cluster.racks):
        if rack.rack in pods and not behind[other] & behind[position]:
            beyond -= behind[other]
            uplink = rack.uplink_in if is_out else rack.uplink_out
            rate += min(uplink, _sum_of(cluster, behind[other], is_out=not is_out))
    rate += _sum_of(cluster, beyond, is_out=not is_out)
    return min(_sum_of(cluster, behind[position], is_out=is_out), rate)


def _sum_of(cluster: ClusterSpec, nodes: Iterable[int], *, is_out: bool) -> float:
    """Return the rates of the links of some nodes together."""
    found = [cluster.nodes[node] for node in sorted(nodes)]
    return sum(node.bandwidth_out if is_out else node.bandwidth_in for node in found)
