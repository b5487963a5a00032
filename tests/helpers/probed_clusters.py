"""Clusters with the calibration that a probe would write, if it measured certain rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec


def probed(cluster: ClusterSpec, nodes: Mapping[str, float], racks: Mapping[str, float]) -> ClusterSpec:
    """Return the cluster as if its nodes and racks were measured, each with one rate in both directions."""
    return _measured(
        cluster,
        [NodeCalibration(name=name, rate_out=_exact(rate), rate_in=_exact(rate)) for name, rate in nodes.items()],
        [RackCalibration(name=name, rate_out=_exact(rate), rate_in=_exact(rate)) for name, rate in racks.items()],
    )


def with_probed_rates(cluster: ClusterSpec, **rates: float | Sequence[float]) -> ClusterSpec:
    """Return the cluster with these measured rates (fields of `NodeCalibration`) of all nodes, or of each."""
    found: list[dict[str, Any]] = [{} for _ in cluster.nodes]
    for name, given in rates.items():
        each = given if isinstance(given, Sequence) else [given] * len(found)
        for of_node, rate in zip(found, each, strict=True):
            of_node[name] = _exact(rate)
    pairs = zip(cluster.nodes, found, strict=True)
    return _measured(cluster, [NodeCalibration(name=node.name, **one) for node, one in pairs], [])


def _measured(cluster: ClusterSpec, nodes: Sequence[NodeCalibration], racks: Sequence[RackCalibration]) -> ClusterSpec:
    calibration = Calibration(
        measured_at="",
        autosync="",
        torch="",
        python="",
        backend="gloo",
        emulated=True,
        cpu_share=0.1,
        nodes=tuple(nodes),
        racks=tuple(racks),
    )
    return replace(cluster, calibration=calibration)


def _exact(rate: float) -> Estimate:
    return Estimate(value=rate, low=rate, high=rate)
