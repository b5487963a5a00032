"""Adds strategies with stages to a simulator of all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.datasets.schema import Record
from autosync.simulators.calibration import MAX_TRIALS, TimeScale, scale, trials_of
from autosync.simulators.interface import Prediction, Simulator
from autosync.simulators.shared.checked_lowering import lowered
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.stages.stage_player import PlayedStep, play_stages
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Strategy


def with_stages(simulator: Simulator, model: ModelSpec, cluster: ClusterSpec) -> Simulator:
    """Return a simulator that also predicts strategies with stages, if the model can be cut."""
    if isinstance(simulator, WithStages) or not model.timeline.cuts:
        return simulator
    return WithStages(simulator, model, cluster)


class WithStages:
    """A simulator that plays strategies with stages itself, and hands all others to another simulator."""

    def __init__(self, others: Simulator, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._others = others
        self._model = model
        self._cluster = cluster
        self._costs = usual_costs(cluster)
        self._scale = TimeScale()
        self._played: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The name of the other simulator."""
        return self._others.name

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        others = iter(self._others.predict([one for one in strategies if not one.stages]))
        return [self._predicted(one) if one.stages else next(others) for one in strategies]

    def _predicted(self, strategy: Strategy) -> Prediction:
        return Prediction(seconds=self._scale.factor * self._seconds(strategy), spread=self._scale.spread)

    def _seconds(self, strategy: Strategy) -> float:
        """Return the seconds of a played step. Searches ask for the same strategies many times."""
        key = strategy_id(strategy, self._model, self._cluster)
        if key not in self._played:
            self._played[key] = self.play(strategy).seconds
        return self._played[key]

    def play(self, strategy: Strategy) -> PlayedStep:
        """Play a step of a strategy with stages."""
        return play_stages(lowered(strategy, self._model, self._cluster), self._model, self._cluster, self._costs)

    def learn(self, records: Sequence[Record]) -> None:
        """Let the other simulator learn from its trials, and learn a factor from those with stages."""
        self._others.learn([record for record in records if not _has_stages(record)])
        trials = trials_of([record for record in records if _has_stages(record)], self._model, self._cluster)
        trials = trials[-MAX_TRIALS:]
        self._scale = scale(np.array([self._seconds(one.strategy) for one in trials]), trials)


def _has_stages(record: Record) -> bool:
    return record.strategy is not None and bool(record.strategy.get("stages"))
