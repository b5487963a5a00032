"""Clusters with the calibration that a probe would write, if it measured certain rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec


def probed(cluster: ClusterSpec, nodes: Mapping[str, float], racks: Mapping[str, float]) -> ClusterSpec:
    """Return the cluster as if its nodes and racks were measured, each with one rate in both directions."""
    calibration = Calibration(
        measured_at="",
        autosync="",
        torch="",
        python="",
        backend="gloo",
        emulated=True,
        cpu_share=0.1,
        nodes=tuple(
            NodeCalibration(name=name, rate_out=_exact(rate), rate_in=_exact(rate)) for name, rate in nodes.items()
        ),
        racks=tuple(
            RackCalibration(name=name, rate_out=_exact(rate), rate_in=_exact(rate)) for name, rate in racks.items()
        ),
    )
    return replace(cluster, calibration=calibration)


def _exact(rate: float) -> Estimate:
    return Estimate(value=rate, low=rate, high=rate)
