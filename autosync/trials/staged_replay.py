"""Replays stages: passes sleep for the times of their layers, and all bytes between stages and ranks are real.

A pass of a microbatch takes the time that the spec's profile gives for its examples. Every boundary carries the plan's
bytes, whose numbers have no meaning. A stage's gradients come with the last pass of a step that completes some, as sums
over microbatches would. Those of embeddings have as many rows as all these microbatches touch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from autosync.plan.rows import union_rows, whole_rows
from autosync.plan.types import Local, Plan, StagePass
from autosync.runtime.stages.left_products import LeftProducts
from autosync.runtime.stages.recorded_model import num_examples_of, planned_bytes
from autosync.runtime.stages.stage_program import PassedMicrobatch
from autosync.specs.model import ModelSpec
from autosync.specs.task import Task
from autosync.strategy.bundle import Bundle
from autosync.strategy.stage_compute import pass_seconds
from autosync.strategy.stages import stages_of_variables
from autosync.trials.replay import ReplayedModel, Rows, backward_of, draw_rows


class ReplayedBoundary:
    """A boundary whose values are buffers of the planned sizes; they are never written, so all sends may share them."""

    def __init__(self, forward_bytes: int, backward_bytes: int) -> None:
        self.forward = torch.zeros(forward_bytes, dtype=torch.uint8)
        self.backward = torch.zeros(backward_bytes, dtype=torch.uint8)

    def pack(self, values: Mapping[int, torch.Tensor], *, backward: bool = False) -> torch.Tensor:
        """Return the bytes to send."""
        del values
        return self.backward if backward else self.forward

    def unpack(self, buffer: torch.Tensor, *, backward: bool = False) -> Mapping[int, torch.Tensor]:
        """Return what has come."""
        del backward
        return {0: buffer}


class ReplayedStage:
    """A stage of a replayed model. `seconds` are those of a microbatch's forward and backward pass, and of the
    gradients of weights that the backward pass leaves for later; None if it leaves none."""

    def __init__(
        self,
        model: ReplayedModel,
        names: Sequence[str],
        seconds: tuple[float, float, float | None],
        num_passes: int,
        *,
        rows: Rows,
        arriving: ReplayedBoundary | None,
        leaving: ReplayedBoundary | None,
    ) -> None:
        self.arriving = arriving
        self.leaving = leaving
        self._model = model
        self._names = tuple(names)
        self._seconds = seconds
        self._num_passes = num_passes
        self._rows = rows
        self._replaced: Mapping[nn.Parameter, nn.Parameter] = {}
        # Copies with other parameters count together: backward passes come in the order of the steps.
        self._num_passed = [0]

    def forward(
        self, batch: Sequence[torch.Tensor], received: Mapping[int, torch.Tensor], *, keeps: bool
    ) -> PassedMicrobatch:
        """Take the time of a forward pass. If it keeps nothing, the seconds of backward passes are longer."""
        del batch, received, keeps
        self._model.pace.spend(self._seconds[0])
        if self.leaving is None:
            return PassedMicrobatch(loss=torch.zeros(()))
        return PassedMicrobatch(sent={0: self.leaving.forward})

    def backward(
        self, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor], *, scale: float
    ) -> Mapping[int, torch.Tensor]:
        """Take the time of a backward pass; unless it is split, there are gradients after the last one of a step."""
        del passed, gradients, scale
        if self._seconds[2] is None:
            self._complete(self._seconds[1])
        else:
            self._model.pace.spend(self._seconds[1])
        return {} if self.arriving is None else {0: self.arriving.backward}

    def weights(self, left: LeftProducts) -> None:
        """Take the time of what a backward pass has left."""
        del left
        assert self._seconds[2] is not None, "the plan splits backward passes"
        self._complete(self._seconds[2])

    def _complete(self, seconds: float) -> None:
        """Take the time of a pass that completes a microbatch's gradients; the last one of a step produces them."""
        self._num_passed[0] += 1
        if self._num_passed[0] < self._num_passes:
            self._model.pace.spend(seconds)
        else:
            self._num_passed[0] = 0
            backward_of(self._model, self._names, seconds, self._replaced, self._rows)

    def with_parameters(self, replaced: Mapping[nn.Parameter, nn.Parameter]) -> ReplayedStage:
        """Return the stage that gives gradients to other parameters in the places of these."""
        found = copy.copy(self)
        found._replaced = replaced  # noqa: SLF001 - a copy of this object
        return found


def replay_stages(spec: ModelSpec, rank: int, plan: Plan, model: ReplayedModel) -> list[ReplayedStage]:
    """Return the stages of a plan as a rank replays them; `spec` is at the pace of its device."""
    seconds = pass_seconds(
        plan.stages, spec, num_examples_of(plan), recompute=plan.recompute, splits_backward=plan.splits_backward
    )
    uses = stages_of_variables(plan.stages, spec)
    boundaries = [ReplayedBoundary(*planned_bytes(plan, number)) for number in range(len(plan.stages) - 1)]
    counts = [0] * len(plan.stages)
    for one in plan.operations:
        if isinstance(one, Local) and isinstance(one.settings, StagePass) and one.kind == plan.gradient_pass:
            counts[one.settings.stage] += one.groups[0][0] == rank
    names = [[name for name, stages in uses.items() if number in stages] for number in range(len(plan.stages))]
    return [
        ReplayedStage(
            model,
            names[number],
            (
                seconds["forward", number],
                seconds["backward", number],
                seconds["weights", number] if plan.splits_backward else None,
            ),
            counts[number],
            rows=_touched_rows(spec, names[number], num_examples_of(plan) * counts[number]),
            arriving=boundaries[number - 1] if number else None,
            leaving=boundaries[number] if number < len(boundaries) else None,
        )
        for number in range(len(plan.stages))
    ]


def _touched_rows(spec: ModelSpec, names: Sequence[str], num_examples: int) -> Rows:
    """Return the rows that so many examples touch, of the sparse ones among these variables."""
    generator, found = torch.Generator().manual_seed(0), {}
    for variable in spec.variables:
        if variable.sparse and variable.name in names:
            count = union_rows(variable.shape[0], variable.touched_rows or 0.0, num_examples / spec.batch_size)
            found[variable.name] = draw_rows(variable, whole_rows(count), generator)
    return found


class StageReplayer:
    """Makes the replayed stages of one rank, in place of recorded ones."""

    def __init__(self, spec: ModelSpec, rank: int) -> None:
        self._spec = spec
        self._rank = rank

    def __call__(
        self, task: Task, model: torch.nn.Module, bundle: Bundle, plan: Plan, microbatches: Sequence[Any]
    ) -> list[ReplayedStage]:
        del task, bundle, microbatches
        assert isinstance(model, ReplayedModel), "a replay's task builds a replayed model"
        return replay_stages(self._spec, self._rank, plan, model)
