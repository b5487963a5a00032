"""The most detailed prediction that a cluster allows: the timeline, or closed forms for too many messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autosync.datasets.schema import Record
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Prediction, Simulator
from autosync.simulators.stages.simulator import with_stages
from autosync.simulators.timeline.scene_builder import may_have_too_many
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy


def open_timeline(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> Simulator:  # noqa: ARG001 - neither learns from other models
    """Return the simulator that the catalogue calls `timeline`.

    It also plays strategies with stages, if the model can be cut.
    """
    return with_stages(most_detailed(model, cluster), model, cluster)


def most_detailed(model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None) -> Simulator:
    """Return the timeline; where plans may have very many messages, one that leaves these to closed forms."""
    timeline = TimelineSimulator(model, cluster, costs=costs)
    if not may_have_too_many(model, cluster):
        return timeline
    return LargeClusterSimulator(timeline, AnalyticalSimulator(model, cluster, costs=costs))


def predictor_of(simulator: Simulator, strategy: Strategy) -> str:
    """Return the name of the simulator that predicts a strategy, also where `most_detailed` is two of them."""
    return simulator.name_for(strategy) if isinstance(simulator, LargeClusterSimulator) else simulator.name


class LargeClusterSimulator:
    """The timeline of a large cluster, or of a large model.

    If all nodes do the same, one of them is simulated. If they do not, and a plan has more messages than are
    affordable, the analytical simulator predicts.
    """

    name = "timeline"

    def __init__(self, timeline: TimelineSimulator, analytical: AnalyticalSimulator) -> None:
        self._timeline = timeline
        self._analytical = analytical

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        affordable = self._timeline.are_affordable(strategies)
        pairs = list(zip(strategies, affordable, strict=True))
        played = iter(self._timeline.predict([strategy for strategy, is_affordable in pairs if is_affordable]))
        closed = iter(self._analytical.predict([strategy for strategy, is_affordable in pairs if not is_affordable]))
        return [next(played) if is_affordable else next(closed) for is_affordable in affordable]

    def name_for(self, strategy: Strategy) -> str:
        """Return the name of the simulator that predicts this strategy."""
        (is_affordable,) = self._timeline.are_affordable([strategy])
        return self._timeline.name if is_affordable else self._analytical.name

    def learn(self, records: Sequence[Record]) -> None:
        """Learn from trials as both simulators do. What the timeline cannot simulate teaches only the other."""
        self._timeline.learn(records)
        self._analytical.learn(records)
