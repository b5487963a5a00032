"""The timeline where it can simulate every message, and the analytical simulator in its place on larger clusters."""

from __future__ import annotations

from pathlib import Path

from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.simulators.shared.costs import Costs
from autosync.simulators.stages.simulator import WithStages
from autosync.simulators.timeline.simulator import MOST_RANKS, TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec


def open_timeline(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> Simulator:  # noqa: ARG001 - neither learns from other models
    """Return the simulator that the catalogue calls `timeline`. Its own name tells which of the two it is.

    It also plays strategies with stages, if the model can be cut.
    """
    found = most_detailed(model, cluster)
    return WithStages(found, model, cluster) if model.timeline.cuts else found


def most_detailed(model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None) -> Simulator:
    """Return the timeline for up to `MOST_RANKS` ranks, else the analytical simulator.

    The number of messages grows with the square of the number of ranks: a step of 1,000 ranks has too many to simulate.
    """
    if len(cluster.ranks) > MOST_RANKS:
        return AnalyticalSimulator(model, cluster, costs=costs)
    return TimelineSimulator(model, cluster, costs=costs)
