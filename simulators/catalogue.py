"""All simulators by name. Other packages add theirs through the entry-point group `autosync.simulators`.

A name stands for a builder, `(model, cluster, *, prior) -> Simulator`. `prior` is None or a folder with records of
other models and clusters, or with a simulator that learned from them. Simulators that cannot use it ignore it.
"""

from __future__ import annotations

from pathlib import Path

from autosync.registry import Registry
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

_HERE = "autosync.simulators"

SIMULATORS = Registry(
    "simulator",
    {
        "analytical": f"{_HERE}.analytical.simulator:open_analytical",
        "learned": f"{_HERE}.learned.simulators:open_learned",
        "linear": f"{_HERE}.learned.simulators:open_linear",
        "sequence": f"{_HERE}.learned.simulators:open_sequence",
        "timeline": f"{_HERE}.large_clusters:open_timeline",
    },
)


def simulator_names() -> tuple[str, ...]:
    """Return the names of all known simulators, sorted."""
    return SIMULATORS.names()


def open_simulator(name: str, model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> Simulator:
    """Return the simulator of that name for a model on a cluster.

    The error for an unknown name lists the known ones.
    """
    simulator: Simulator = SIMULATORS.get(name)(model, cluster, prior=prior)
    return simulator
