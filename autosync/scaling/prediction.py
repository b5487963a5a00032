"""The results of a prediction of scaling: for each number of nodes, stock DDP and the fastest strategy found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autosync.frames import sentence_and_table
from autosync.scaling.bottleneck import Bottleneck
from autosync.scaling.knee import Knee
from autosync.scaling.price import Price
from autosync.strategy.representation import Strategy

if TYPE_CHECKING:
    import pandas as pd

SAMPLES = 1_000_000
"""Costs are for this number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A predicted figure and the ends of its 90 % interval; both ends are None if no errors are known."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Forecast:
        """Return the figure multiplied by a known factor."""
        return self._mapped(lambda one: one * factor)

    def under(self, amount: float) -> Forecast:
        """Return a known amount divided by the figure, such as samples by seconds."""
        found = self._mapped(lambda one: amount / one)
        return Forecast(value=found.value, low=found.high, high=found.low)

    def _mapped(self, change: Callable[[float], float]) -> Forecast:
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return Forecast(value=change(self.value), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A strategy on some number of nodes.

    `efficiency` compares the throughput with that of as many ranks that never wait for each other. `cost` is the cost
    of a million samples, or None without a price. `name` names the strategy for users, and `simulator` the simulator
    that predicted it (`profile` for a rank that trains alone). `strategy` is None for such a rank.
    """

    name: str
    strategy: Strategy | None
    simulator: str
    step_seconds: Forecast
    samples_per_second: Forecast
    efficiency: Forecast
    cost: Forecast | None
    bottleneck: Bottleneck


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePrediction:
    """The prediction for a number of worker nodes. `num_priced` also counts nodes that only serve.

    `beyond` lists the differences between the cluster and all clusters on which errors of predictions were measured.
    """

    num_nodes: int
    num_ranks: int
    num_priced: int
    beyond: tuple[str, ...]
    stock: Outlook
    best: Outlook

    @property
    def gain(self) -> float:
        """The predicted speed of the best strategy as a multiple of stock DDP's."""
        return self.stock.step_seconds.value / self.best.step_seconds.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPrediction:
    """The predictions for a model on a cluster, by rising number of nodes.

    `measured_nodes` is the number of worker nodes in the cluster file, and `is_probed` tells whether their links were
    measured. Each rank keeps its batch of `batch_size` samples a step, so the global batch grows with the nodes.
    """

    model: str
    cluster: str
    measured_nodes: int
    is_probed: bool
    batch_size: int
    price: Price | None
    sizes: tuple[SizePrediction, ...]
    stock_knee: Knee | None
    best_knee: Knee | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return two rows for each number of nodes: stock DDP and the fastest strategy. Ends are of 90 % intervals."""
        import pandas as pd

        shown = [(size, outlook) for size in self.sizes for outlook in (size.stock, size.best)]
        steps = [outlook.step_seconds.times(1e3) for _, outlook in shown]
        return pd.DataFrame(
            {
                "nodes": [size.num_nodes for size, _ in shown],
                "ranks": [size.num_ranks for size, _ in shown],
                "strategy": [outlook.name for _, outlook in shown],
                "step_ms": [one.value for one in steps],
                "low_ms": [one.low for one in steps],
                "high_ms": [one.high for one in steps],
                "samples_per_second": [outlook.samples_per_second.value for _, outlook in shown],
                "efficiency": [outlook.efficiency.value for _, outlook in shown],
                "cost": [None if outlook.cost is None else outlook.cost.value for _, outlook in shown],
                "bottleneck": [str(outlook.bottleneck) for _, outlook in shown],
                "is_beyond_measured": [bool(size.beyond) for size, _ in shown],
            }
        )

    def _repr_html_(self) -> str:
        words = f"{self.model} on {self.cluster}, predicted. How many nodes pay: {self.best_knee or 'not known'}."
        return sentence_and_table(" ".join([words, *self.warnings]), self.to_frame())
