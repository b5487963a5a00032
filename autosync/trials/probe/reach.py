"""What the ends of a link let it carry, and which measurements therefore say something about the link itself.

A link that is wider than all links at its ends cannot be filled. Its measured rate is then that of these links: it is
no reason to call the link slow, and it does not hold for a cluster with more nodes.
"""

from __future__ import annotations

from dataclasses import replace

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import ends_of_uplink, nodes_behind, racks_around, reach
from autosync.trials.probe.schedule import nodes_beyond, peers_of

CLAIM_KEPT = 0.9
"""A link is as fast as claimed if its payload reaches this share; headers and short pauses take a few percent."""


def node_reach(cluster: ClusterSpec, index: int, *, out: bool) -> float:
    """Return the rate that the peers of a node allow, by the cluster file."""
    return reach(cluster, racks_around(cluster)[index], peers_of(cluster, index, out=out), to_nodes=out)


def rack_reach(cluster: ClusterSpec, calibration: Calibration, rack: int, *, out: bool) -> float:
    """Return the rate that the nodes at both ends of a rack's uplink allow, as measured, else by the cluster file."""
    lower, upper = ends_of_uplink(cluster, rack)
    beyond, measured = nodes_beyond(cluster, rack), _as_measured(cluster, calibration)
    return min(
        reach(measured, lower, nodes_behind(cluster)[rack], to_nodes=not out),
        reach(measured, upper, beyond, to_nodes=out),
    )


def telling(cluster: ClusterSpec, calibration: Calibration) -> Calibration:
    """Return the calibration without the rates of links that are wider, by the file, than their ends let them be."""
    names = {rack.name: position for position, rack in enumerate(cluster.racks)}
    nodes = [_of_node(cluster, one) for one in calibration.nodes]
    racks = [_of_rack(cluster, calibration, one, names[one.name]) for one in calibration.racks]
    return replace(calibration, nodes=tuple(nodes), racks=tuple(one for one in racks if one.rate_out or one.rate_in))


def _as_measured(cluster: ClusterSpec, calibration: Calibration) -> ClusterSpec:
    """Return the cluster with the measured rates of its nodes."""
    nodes = []
    for node in cluster.nodes:
        found = calibration.node(node.name)
        out, into = (None, None) if found is None else (found.rate_out, found.rate_in)
        nodes.append(
            replace(
                node,
                bandwidth_out=out.value if out is not None and out.value > 0 else node.bandwidth_out,
                bandwidth_in=into.value if into is not None and into.value > 0 else node.bandwidth_in,
            )
        )
    return replace(cluster, nodes=tuple(nodes), alike=(), calibration=None)


def _of_node(cluster: ClusterSpec, measured: NodeCalibration) -> NodeCalibration:
    index = cluster.node_index(measured.name)
    node = cluster.nodes[index]
    return replace(
        measured,
        rate_out=_if_telling(measured.rate_out, node.bandwidth_out, node_reach(cluster, index, out=True)),
        rate_in=_if_telling(measured.rate_in, node.bandwidth_in, node_reach(cluster, index, out=False)),
    )


def _of_rack(cluster: ClusterSpec, calibration: Calibration, measured: RackCalibration, rack: int) -> RackCalibration:
    claimed = cluster.racks[rack]
    out, into = (rack_reach(cluster, calibration, rack, out=way) for way in (True, False))
    return replace(
        measured,
        rate_out=_if_telling(measured.rate_out, claimed.uplink_out, out),
        rate_in=_if_telling(measured.rate_in, claimed.uplink_in, into),
    )


def _if_telling(measured: Estimate | None, claimed: float, allowed: float) -> Estimate | None:
    if measured is not None and claimed > allowed and measured.value >= CLAIM_KEPT * allowed:
        return None
    return measured
