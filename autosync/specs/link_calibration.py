"""Which measured rates of links count for a cluster.

A probe measures with a backend of its own. Where the cluster uses another one, that one may be faster. So a rate that
was measured with another backend counts only if it is above the rate in the file: what the link has carried, it can
carry. All who need the rates of links ask here, so the bound and all simulators follow the same rule.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec


def link_calibration(cluster: ClusterSpec) -> Calibration | None:
    """Return a cluster's calibration with the rates of links that count; None if it was not probed."""
    calibration = cluster.calibration
    if calibration is None or calibration.backend == cluster.backend:
        return calibration
    return _above_the_file(cluster)


def measured_node(cluster: ClusterSpec, name: str) -> NodeCalibration | None:
    """Return the measurements of a node with the rates that count; None if it was not probed."""
    calibration = link_calibration(cluster)
    return None if calibration is None else calibration.node(name)


def measured_racks(cluster: ClusterSpec) -> Mapping[str, RackCalibration]:
    """Return the rates of uplinks that count, by rack."""
    calibration = link_calibration(cluster)
    return {} if calibration is None else {rack.name: rack for rack in calibration.racks}


@functools.lru_cache(maxsize=64)
def _above_the_file(cluster: ClusterSpec) -> Calibration:
    calibration = cluster.calibration
    assert calibration is not None, "asked of probed clusters"
    racks = {rack.name: rack for rack in cluster.racks}
    nodes = [(one, cluster.nodes[cluster.node_index(one.name)]) for one in calibration.nodes]
    return replace(
        calibration,
        nodes=tuple(
            replace(
                one,
                rate_out=_if_above(one.rate_out, node.bandwidth_out),
                rate_in=_if_above(one.rate_in, node.bandwidth_in),
                rate_within=_if_above(one.rate_within, node.intra_bandwidth),
            )
            for one, node in nodes
        ),
        racks=tuple(
            replace(
                one,
                rate_out=_if_above(one.rate_out, racks[one.name].uplink_out),
                rate_in=_if_above(one.rate_in, racks[one.name].uplink_in),
            )
            for one in calibration.racks
        ),
    )


def _if_above(measured: Estimate | None, claimed: float | None) -> Estimate | None:
    return measured if measured is not None and claimed is not None and measured.value > claimed else None
