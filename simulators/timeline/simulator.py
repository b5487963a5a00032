"""The timeline as a simulator: it lowers strategies, and simulates their plans until steps are steady."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autosync.datasets.schema import Record
from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import tables_at
from autosync.simulators.calibration import MAX_TRIALS, TimeScale, scale, trials_of
from autosync.simulators.interface import Prediction
from autosync.simulators.shared.checked_lowering import lowered
from autosync.simulators.shared.costs import Costs, usual_costs
from autosync.simulators.timeline.explanation import Explanation, explanation_of
from autosync.simulators.timeline.kernel import play
from autosync.simulators.timeline.scene import Played, Scene
from autosync.simulators.timeline.scene_builder import SceneBuilder
from autosync.simulators.timeline.steady_state import step_seconds
from autosync.simulators.timeline.trace import trace_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy
from autosync.strategy.shares import are_even

MOST_RANKS = 64
"""The largest number of ranks; larger clusters have too many messages to simulate (see `simulators.large_clusters`)."""

_BATCH = 64


class TimelineSimulator:
    """Predicts by simulating plans, event by event."""

    name = "timeline"

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs or usual_costs(cluster)
        self._builder = SceneBuilder(model, cluster, self._costs)
        self._lowering = Lowering(model, cluster)
        self._scale = TimeScale()
        self._learned: dict[str, float] = {}

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        factor, spread = self._scale.factor, self._scale.spread
        return [Prediction(seconds=factor * seconds, spread=spread) for seconds in self._played(strategies)]

    def learn(self, records: Sequence[Record]) -> None:
        """Learn the factor by which measured steps are longer than simulated ones, and the remaining uncertainty."""
        trials = trials_of(records, self._model, self._cluster)[-MAX_TRIALS:]
        new = {one.strategy_id: one.strategy for one in trials if one.strategy_id not in self._learned}
        self._learned.update(zip(new, self._played(list(new.values())), strict=True))
        self._scale = scale(np.array([self._learned[one.strategy_id] for one in trials]), trials)

    def _played(self, strategies: Sequence[Strategy]) -> Iterator[float]:
        """Yield the simulated seconds of a step for each strategy."""
        for begin in range(0, len(strategies), _BATCH):
            yield from map(_seconds, self._scenes(strategies[begin : begin + _BATCH]))

    def scene(self, strategy: Strategy, *, every_rank: bool = False) -> Scene:
        """Return the kernel's input. One rank represents those that do the same, except with `every_rank`."""
        (scene,) = self._scenes([strategy], every_rank=every_rank)
        return scene

    def play(self, strategy: Strategy, *, count: int | None = None) -> Played:
        """Return everything that happens, message by message, from rest until steps are steady, or in `count` steps."""
        return play(self.scene(strategy, every_rank=True), count)

    def explain(self, strategy: Strategy) -> Explanation:
        """Return the explanation of a step: its waits, and the busy shares of links."""
        plan, scene = lowered(strategy, self._model, self._cluster), self.scene(strategy, every_rank=True)
        played = play(scene)
        return explanation_of(plan, self._cluster, scene, played, seconds=steady_seconds(scene, played))

    def trace(self, strategy: Strategy) -> list[dict[str, Any]]:
        """Return the events of a Chrome trace in the runtime's format.

        Each rank has its own steps in it, which become steady later than the last rank's do.
        """
        plan, scene = lowered(strategy, self._model, self._cluster), self.scene(strategy, every_rank=True)
        return trace_of(plan, self._cluster, scene, play(scene, all_of_them=True))

    def _scenes(self, strategies: Sequence[Strategy], *, every_rank: bool = False) -> Iterator[Scene]:
        lowering = self._lowering
        try:
            plans = lowering.lower(lowering.encode(strategies))
        except KeyError:
            # The check names the strategy and the broken rule.
            for strategy in strategies:
                legality.check(strategy, self._model, self._cluster)
            raise
        for number, strategy in enumerate(strategies):
            begin, end = plans.first_operation[number], plans.first_operation[number + 1]
            yield self._builder.scene(
                tables_at(plans, number, self._cluster, shapes=lowering.shapes, costs=lowering.costs),
                strategy.overlap,
                by_users=plans.by_users[begin:end],
                users_elements=int(plans.users_elements[number]),
                shares=() if are_even(strategy.shares) else strategy.shares,
                every_rank=every_rank,
            )


def steady_seconds(scene: Scene, played: Played) -> float:
    """Return the step time of a simulated plan in the long run."""
    return step_seconds(played.step_ends, played.ended, scene.every, scene.follower_lag)


def _seconds(scene: Scene) -> float:
    return steady_seconds(scene, play(scene))
