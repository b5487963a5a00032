"""What each rank computes in the reference under a plan with stages: its variables, passes and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autosync.plan.rank_passes import RankPass, passes_of
from autosync.plan.reference.workload import Array, Gradient, Workload
from autosync.plan.types import Edge, Plan
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.stages import stages_of_variables


class StageDivision:
    """The division of a plan's work. Without stages, each rank holds all variables and waits for no passes.

    Each microbatch has a gradient of its own. A variable that is used in several stages gets an equal part of it in
    each of them. So the sum over stages and the mean over microbatches is what one process would compute.
    """

    def __init__(self, plan: Plan, model: ModelSpec) -> None:
        self._plan = plan
        self._stages_of: Mapping[str, tuple[int, ...]] = stages_of_variables(plan.stages, model) if plan.stages else {}
        self._completing: dict[tuple[int, int], list[RankPass]] = {}
        for rank in range(plan.num_workers if plan.stages else 0):
            for one in passes_of(plan, rank):
                if one.kind == plan.gradient_pass:
                    self._completing.setdefault((rank, one.place.stage), []).append(one)

    def holds(self, rank: int, variable: str) -> bool:
        """Whether a rank computes with a variable."""
        if not self._plan.stages:
            return True
        return any(rank in self._plan.stages[stage].ranks for stage in self._stages_of[variable])

    def last_passes(self, rank: int, variable: str) -> tuple[Edge, ...]:
        """Return edges to the passes after which a rank's gradient of a variable is complete."""
        if not self._plan.stages:
            return ()
        passes = [self._completing.get((rank, stage), []) for stage in self._stages_of[variable]]
        return tuple(Edge("operation", one.operation) for of_stage in passes for one in of_stage)

    def gradient(
        self, workload: Workload, variable: Variable, rank: int, step: int, values: Sequence[Array]
    ) -> Gradient:
        """Return a rank's gradient: the sum over its microbatches, each scaled as `Plan` says.

        `values` are those of the variable, the newest last; a microbatch takes the one that its pass takes.
        """
        stages = self._stages_of[variable.name]
        scale = 1.0 / self._plan.microbatches / len(stages)
        dense = values[-1] * 0.0
        for stage in stages:
            for one in self._completing.get((rank, stage), []):
                value = values[max(0, len(values) - 1 - one.misses)]
                dense = dense + workload.gradient(variable, one.place.microbatch, step, value).dense * scale
        return Gradient(dense=dense)
