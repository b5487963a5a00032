"""What a simulator is: it predicts how long a step takes by strategies that nobody has run.

A simulator is made for one model on one cluster, and asked about many strategies at once. Third parties add one under
the entry-point group `autosync.simulators`; `autosync.testing.simulators` says what is asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a step takes. `spread` is how far the truth may be off, as a share of it, where the simulator knows."""

    seconds: float
    spread: float | None = None


class Simulator(Protocol):
    """Made by `simulator(model, cluster)`; a calibrated cluster spec gives better predictions than its file alone."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None: ...

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """One prediction a strategy, in their order. Strategies are legal for the model on the cluster."""
