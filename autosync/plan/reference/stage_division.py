"""What each rank computes in the reference under a plan with stages: its variables, passes and gradients."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.plan.reference.workload import Array, Gradient, Workload
from autosync.plan.types import Edge, Local, Plan, StagePass
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
        self._completing: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for index, operation in enumerate(plan.operations):
            if isinstance(operation, Local) and isinstance(operation.settings, StagePass):
                place, rank = operation.settings, operation.groups[0][0]
                if operation.kind == plan.gradient_pass:
                    self._completing.setdefault((rank, place.stage), []).append((index, place.microbatch))

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
        return tuple(Edge("operation", index) for of_stage in passes for index, _ in of_stage)

    def gradient(self, workload: Workload, variable: Variable, rank: int, step: int, value: Array) -> Gradient:
        """Return a rank's gradient: the sum over its microbatches, each scaled as `Plan` says."""
        stages = self._stages_of[variable.name]
        scale = 1.0 / self._plan.microbatches / len(stages)
        dense = value * 0.0
        for stage in stages:
            for _, microbatch in self._completing.get((rank, stage), []):
                dense = dense + workload.gradient(variable, microbatch, step, value).dense * scale
        return Gradient(dense=dense)
