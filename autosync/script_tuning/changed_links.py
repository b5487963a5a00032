"""The links of a cluster after a drift: the search for another strategy must know which of them have become slower.

They are measured while the script waits between two steps, by ranks of their own on the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosync.errors import AutosyncError
from autosync.specs.calibration import Calibration, Estimate
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_racks import with_nodes
from autosync.trials.probe import probe
from autosync.trials.probe.reach import CLAIM_KEPT
from autosync.trials.probe.request import BACKEND, of_links_alone
from autosync.units import format_rate


def with_measured_links(cluster: ClusterSpec, note: Callable[[str], None]) -> ClusterSpec:
    """Measure the links, and return the cluster with the rates of those that are slower than it says.

    What changed is noted. If nothing can be measured, the reason is noted, and the cluster stays as it is.
    """
    if len(cluster.nodes) < 2 or cluster.shares_loopback:
        return cluster
    if cluster.backend != BACKEND:
        note(f"the links are not measured: a probe uses {BACKEND}, and {cluster.backend} may be faster than it")
        return cluster
    try:
        probed = probe(cluster, settings=of_links_alone(len(cluster.nodes)))
    except AutosyncError as error:
        note(f"the links could not be measured, so their rates are taken from the cluster file: {error}")
        return cluster
    found, words = with_slower_links(cluster, probed.calibration)
    note(f"the links were measured: {', '.join(words) if words else 'none is slower than the cluster file says'}")
    return found


def with_slower_links(cluster: ClusterSpec, measured: Calibration) -> tuple[ClusterSpec, list[str]]:
    """Return the cluster with the measured rates where they are lower than its own, and these in words."""
    words: list[str] = []
    nodes = {one.name: one for one in measured.nodes}
    racks = {one.name: one for one in measured.racks}

    def lower(subject: str, direction: str, claimed: float, rate: Estimate | None) -> float:
        if rate is None or rate.high >= CLAIM_KEPT * claimed:
            return claimed
        words.append(f"{subject} {direction}: {format_rate(rate.value)} instead of {format_rate(claimed)}")
        return rate.value

    def of_node(node: Node) -> Node:
        one = nodes.get(node.name)
        out = lower(node.name, "out", node.bandwidth_out, None if one is None else one.rate_out)
        into = lower(node.name, "in", node.bandwidth_in, None if one is None else one.rate_in)
        return replace(node, bandwidth_out=out, bandwidth_in=into)

    def of_rack(rack: Rack) -> Rack:
        one = racks.get(rack.name)
        out = lower(rack.name, "out of the rack", rack.uplink_out, None if one is None else one.rate_out)
        into = lower(rack.name, "into the rack", rack.uplink_in, None if one is None else one.rate_in)
        return replace(rack, uplink_out=out, uplink_in=into)

    found = with_nodes(cluster, tuple(map(of_node, cluster.nodes)), racks=tuple(map(of_rack, cluster.racks)))
    if words and cluster.calibration is not None:
        found = replace(found, calibration=_with_rates(cluster.calibration, measured))
    return found, words


def _with_rates(before: Calibration, measured: Calibration) -> Calibration:
    """Return an earlier calibration with new rates: what else it has costs longer to measure, and has not changed."""
    now = {one.name: one for one in measured.nodes}
    nodes = tuple(
        replace(one, rate_out=now[one.name].rate_out, rate_in=now[one.name].rate_in) if one.name in now else one
        for one in before.nodes
    )
    return replace(before, nodes=nodes, racks=measured.racks)
