"""The timeline as a simulator: it lowers strategies, and simulates their plans until steps are steady."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autosync.datasets.schema import Record
from autosync.plan.compiled.data import Plans
from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import tables_at
from autosync.plan.tables import Tables
from autosync.simulators.calibration import MAX_TRIALS, TimeScale, scale, trials_of
from autosync.simulators.interface import Prediction
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.shared.checked_lowering import lowered
from autosync.simulators.shared.cores import on_each
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.shared.drawn_steps import DrawnSteps
from autosync.simulators.shared.reads import reads_of
from autosync.simulators.timeline.explanation import Explanation, explanation_of
from autosync.simulators.timeline.kernel import play
from autosync.simulators.timeline.reads import num_last_steps
from autosync.simulators.timeline.scene import Played, Scene
from autosync.simulators.timeline.scene_builder import BatchDivision, SceneBuilder, may_have_too_many
from autosync.simulators.timeline.steady_state import num_until_all, step_seconds
from autosync.simulators.timeline.trace import trace_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy
from autosync.strategy.shares import are_even

_BATCH = 64


class TimelineSimulator:
    """Predicts by simulating plans, event by event; `coarse` is explained in `scene_builder`."""

    name = "timeline"

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None, coarse: bool | None = None
    ) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs or usual_costs(cluster)
        self._builder = SceneBuilder(model, cluster, self._costs, coarse=coarse)
        self._lowering = Lowering(model, cluster)
        self._drawn = DrawnSteps(model, cluster)
        self._scale = TimeScale()
        self._learned: dict[str, float] = {}

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        factor, spread = self._scale.factor, self._scale.spread
        return [Prediction(seconds=factor * seconds, spread=spread) for seconds in self._played(strategies)]

    def learn(self, records: Sequence[Record]) -> None:
        """Learn the factor by which measured steps are longer than simulated ones, and the remaining uncertainty.

        Trials with stages are left out, because they are predicted by other means.
        """
        trials = [one for one in trials_of(records, self._model, self._cluster) if not one.strategy.stages]
        trials = trials[-MAX_TRIALS:]
        affordable = self.are_affordable([one.strategy for one in trials])
        trials = [one for one, is_affordable in zip(trials, affordable, strict=True) if is_affordable]
        new = {one.strategy_id: one.strategy for one in trials if one.strategy_id not in self._learned}
        self._learned.update(zip(new, self._played(list(new.values())), strict=True))
        self._scale = scale(np.array([self._learned[one.strategy_id] for one in trials]), trials)

    def are_affordable(self, strategies: Sequence[Strategy], *, every_rank: bool = False) -> list[bool]:
        """Return for each strategy whether its messages are few enough to simulate all of them.

        With `every_rank`, they are those of all ranks even if one node represents all others.
        """
        if not may_have_too_many(self._model, self._cluster):
            return [True] * len(strategies)
        found: list[bool] = []
        for begin in range(0, len(strategies), _BATCH):
            some = strategies[begin : begin + _BATCH]
            plans = self._lowered(some)
            for number, strategy in enumerate(some):
                tables = self._tables(plans, number)
                reads = reads_of(strategy, self._model, self._cluster)
                found.append(
                    self._builder.is_affordable(
                        tables, strategy.overlap, _division(strategy), reads, every_rank=every_rank
                    )
                )
        return found

    def _played(self, strategies: Sequence[Strategy]) -> Iterator[float]:
        """Yield the simulated seconds of a step for each strategy; the mean, if steps use different variables."""
        for begin in range(0, len(strategies), _BATCH):
            yield from self._drawn.mean_of(strategies[begin : begin + _BATCH], self._each).tolist()

    def _each(self, strategies: Sequence[Strategy]) -> Floats:
        """Return the simulated seconds of strategies in which everything travels."""
        return np.array(list(on_each(_seconds, self._scenes(strategies))))

    def scene(self, strategy: Strategy, *, every_rank: bool = False) -> Scene:
        """Return the kernel's input. One rank represents those that do the same, except with `every_rank`."""
        (scene,) = self._scenes([strategy], every_rank=every_rank)
        return scene

    def play(self, strategy: Strategy, *, count: int | None = None) -> Played:
        """Return everything that happens, message by message, from rest until steps are steady, or in `count` steps.

        Here, as in an explanation and a trace, steps that use different variables are all like the most frequent one.
        """
        return play(self.scene(self._usual(strategy), every_rank=True), count)

    def explain(self, strategy: Strategy) -> Explanation:
        """Return the explanation of a step: its waits, and the busy shares of links."""
        usual = self._usual(strategy)
        plan, scene = lowered(usual, self._model, self._cluster), self.scene(usual, every_rank=True)
        num_last = num_last_steps(scene)
        played = play(scene, num_until_all(scene.every, scene.follower_lag, num_last))
        until_last = played._replace(step_ends=played.step_ends[: len(played.step_ends) - num_last])
        return explanation_of(plan, self._cluster, scene, until_last, seconds=_seconds(scene))

    def trace(self, strategy: Strategy) -> list[dict[str, Any]]:
        """Return the events of a Chrome trace in the runtime's format.

        Each rank has its own steps in it, which become steady later than the last rank's do.
        """
        usual = self._usual(strategy)
        plan, scene = lowered(usual, self._model, self._cluster), self.scene(usual, every_rank=True)
        return trace_of(plan, self._cluster, scene, play(scene, all_of_them=True))

    def _usual(self, strategy: Strategy) -> Strategy:
        return max(self._drawn.of(strategy), key=lambda step: step.share).strategy

    def _lowered(self, strategies: Sequence[Strategy]) -> Plans:
        try:
            return self._lowering.lower(self._lowering.encode(strategies))
        except KeyError:
            # The check names the strategy and the broken rule.
            for strategy in strategies:
                legality.check(strategy, self._model, self._cluster)
            raise

    def _tables(self, plans: Plans, number: int) -> Tables:
        return tables_at(plans, number, self._cluster, shapes=self._lowering.shapes, costs=self._lowering.costs)

    def _scenes(self, strategies: Sequence[Strategy], *, every_rank: bool = False) -> Iterator[Scene]:
        plans = self._lowered(strategies)
        for number, strategy in enumerate(strategies):
            begin, end = plans.first_operation[number], plans.first_operation[number + 1]
            yield self._builder.scene(
                self._tables(plans, number),
                strategy.overlap,
                by_users=plans.by_users[begin:end],
                users_elements=int(plans.users_elements[number]),
                division=_division(strategy),
                reads=reads_of(strategy, self._model, self._cluster),
                every_rank=every_rank,
            )


def _division(strategy: Strategy) -> BatchDivision:
    return BatchDivision(() if are_even(strategy.shares) else tuple(strategy.shares), strategy.batching)


def steady_seconds(scene: Scene, played: Played) -> float:
    """Return the step time of a simulated plan in the long run."""
    num_steps = len(played.step_ends) - num_last_steps(scene)
    return step_seconds(played.step_ends[:num_steps], played.ended[:num_steps], scene.every, scene.follower_lag)


def _seconds(scene: Scene) -> float:
    return steady_seconds(scene, play(scene, stops_at_rest=True))
