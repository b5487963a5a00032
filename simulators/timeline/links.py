"""The links of a cluster in the timeline: their rates for payload, and the bytes that pass at once after a pause."""

from __future__ import annotations

import numpy as np

from autosync.simulators.shared.arrays import Integers
from autosync.simulators.shared.costs import flow_limit, link_rate
from autosync.simulators.timeline.scene import NetworkLinks
from autosync.specs.calibration import Estimate
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.costs import Costs
from autosync.specs.link_calibration import measured_node, measured_racks
from autosync.specs.shaping import bucket
from autosync.specs.uplinks import racks_around


def network_of(cluster: ClusterSpec, costs: Costs) -> NetworkLinks:
    """Return the links at the rates that a probe found, else at those in the cluster file."""
    around = np.array(racks_around(cluster), dtype=np.int64)
    probed = [_probed(cluster, node) for node in cluster.nodes]
    uplinks = measured_racks(cluster)

    def rate(claimed: float, measured: Estimate | None) -> float:
        return link_rate(claimed, measured, costs.payload_share)

    def burst(claimed: float, measured: Estimate | None = None) -> float:
        if measured is not None:
            return measured.value
        return float(bucket(claimed).burst_bytes) if cluster.is_emulated else 0.0

    pairs = list(zip(cluster.nodes, probed, strict=True))
    # Each rank of a node can send at the full rate within the node at the same time.
    within = [
        rate(cluster.nodes[rank.node].intra_bandwidth or costs.within.rate, probed[rank.node].get("within"))
        for rank in cluster.ranks
    ]
    shared = [node.intra_total for node in cluster.nodes if node.intra_total is not None]
    up = [(rack, uplinks.get(rack.name)) for rack in cluster.racks]
    into = [rate(node.bandwidth_in, one.get("in")) for node, one in pairs]
    out_of_racks = [rate(rack.uplink_out, one.rate_out if one else None) for rack, one in up]
    into_racks = [rate(rack.uplink_in, one.rate_in if one else None) for rack, one in up]
    uplink_bursts = [burst(rack.uplink_out) for rack in cluster.racks] + [
        burst(rack.uplink_in) for rack in cluster.racks
    ]
    return NetworkLinks(
        node=np.array([rank.node for rank in cluster.ranks], dtype=np.int64),
        rack=around[:, 0].copy(),
        inner_rack=around[:, 1].copy(),
        num_racks=len(cluster.racks),
        link_rate=np.array([*(rate(node.bandwidth_out, one.get("out")) for node, one in pairs), *within]),
        link_burst=np.array(
            [*(burst(node.bandwidth_out, one.get("burst_out")) for node, one in pairs), *(0.0 for _ in within)]
        ),
        link_flow=np.array(
            [
                *(flow_limit(cluster, number, costs) for number in range(len(cluster.nodes))),
                *(np.inf for _ in within),
            ]
        ),
        bus=_buses(cluster),
        queue_rate=np.array([*into, *out_of_racks, *into_racks, *(rate(one, None) for one in shared)]),
        queue_burst=np.array(
            [
                *(burst(node.bandwidth_in, one.get("burst_in")) for node, one in pairs),
                *uplink_bursts,
                *(0.0 for _ in shared),
            ]
        ),
    )


def _buses(cluster: ClusterSpec) -> Integers:
    """Return the queue of what ranks share inside each node, behind those of nodes and racks; -1: nothing."""
    shares = np.array([node.intra_total is not None for node in cluster.nodes], dtype=np.bool_)
    places = len(cluster.nodes) + 2 * len(cluster.racks) + np.cumsum(shares) - 1
    return np.where(shares, places, -1).astype(np.int64)


def _probed(cluster: ClusterSpec, node: Node) -> dict[str, Estimate | None]:
    found = measured_node(cluster, node.name)
    if found is None:
        return {}
    return {
        "out": found.rate_out,
        "in": found.rate_in,
        "within": found.rate_within,
        "burst_out": found.burst_out_bytes,
        "burst_in": found.burst_in_bytes,
    }
