"""Repeats in some later steps what the first step has checked, because a first batch may say too little.

A loss that is a mean over unmasked words passes as long as all microbatches have equally many of them. And the model's
code may depend on what the recording does not show: a number in a closure or a list, a loss function outside the model.
So some later batches are checked too: whether the gradients of examples together are the mean of theirs, and whether
the stages still compute the loss that the model computes. Each rank compares the gradients of the parameters that it
holds.

The first checks come soon after each other. Later ones are so far apart that they are about 1 % of a rank's passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from autosync.errors import OperationError, TaskError
from autosync.plan.types import Plan
from autosync.runtime.stages.recorded_model import UNDIVIDED, num_examples_of, pass_forward
from autosync.runtime.stages.stage_program import StageProgram, StageWork
from autosync.specs.profile.microbatch_losses import GradientComparison, is_near
from autosync.specs.profile.tape import tensors_of
from autosync.specs.task import Task
from autosync.specs.task_run import compute_loss

_LEAST_PERIOD = 64
_SHARE = 0.01
"""The share of a rank's passes that checks may take."""
_NUM_GRADIENT_EXAMPLES = 8
"""The examples that a comparison of gradients passes: two of each of two microbatches, apart and together."""


class LaterChecks:
    """The checks of one model's later steps on one rank. `programs` are those of all stages."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        plan: Plan,
        programs: Sequence[StageWork],
        held: Mapping[str, nn.Parameter],
    ) -> None:
        self._task = task
        self._model = model
        self._programs = programs
        self._gradients = GradientComparison(task, model, held)
        self._period = _period(num_examples_of(plan), plan.microbatches / plan.num_workers)
        # The first step is checked when its pass is recorded.
        self._num_steps = 1
        self._num_checks = 0
        # When a model has learned, its loss is small, and what roundings of larger numbers leave is not.
        self._largest_loss = 0.0
        self._targets = last.targets if isinstance(last := programs[-1], StageProgram) else None

    def check(self, microbatches: Sequence[Any]) -> bool:
        """Check a step if it is its turn, and return whether it was. Call it in all steps but the first.

        Targets that are ignored are counted in each step.
        """
        number, self._num_steps = self._num_steps, self._num_steps + 1
        if self._targets is not None:
            reason = self._targets.why_uneven([tensors_of(one) for one in microbatches])
            if reason:
                raise OperationError(f"in step {number + 1}, {reason}{UNDIVIDED}")
        if number % self._period and (number > self._period or number.bit_count() > 1):
            return False
        first = self._num_checks % len(microbatches)
        self._num_checks += 1
        with torch.random.fork_rng(devices=()):
            reason = self._why_others(microbatches[first])
            if not reason and len(microbatches) > 1:
                other = (first + len(microbatches) // 2) % len(microbatches)
                reason = self._gradients.why_mixed([microbatches[first], microbatches[other]])
        if reason:
            raise OperationError(
                f"in step {number + 1}, {reason} (earlier batches did not show it, and steps after the first may have "
                "trained another model too)" + UNDIVIDED
            )
        return True

    def _model_loss(self, microbatch: Any) -> torch.Tensor:
        with torch.enable_grad():
            return compute_loss(self._task, self._model, microbatch).detach()

    @torch.no_grad()
    def _why_others(self, microbatch: Any) -> str:
        """Return why the stages do not compute the model's loss of a microbatch; empty if they do."""
        before = torch.random.get_rng_state()
        try:
            # Nothing is kept for a backward pass, as there is none: the whole model's activations may be large.
            with torch.autograd.graph.saved_tensors_hooks(lambda _: None, _refuse_to_give):
                wanted = self._model_loss(microbatch)
        except TaskError as error:
            if not isinstance(error.__cause__, _NotKeptError):
                raise
            # The model's own code goes back within its forward pass, as for a penalty on gradients.
            torch.random.set_rng_state(before)
            wanted = self._model_loss(microbatch)
        torch.random.set_rng_state(before)
        loss = pass_forward(self._programs, tensors_of(microbatch), keeps=False)[-1].loss
        assert loss is not None, "the last stage computes the loss"
        values = float(loss), float(wanted)
        if not any(map(math.isfinite, values)):
            # Training has diverged, which its losses show.
            return ""
        self._largest_loss = max(self._largest_loss, abs(values[1]))
        if is_near(loss, wanted, max(abs(values[1]), self._largest_loss / 64)):
            return ""
        return (
            f"the recorded pass computes the loss {values[0]:g} where the model computes {values[1]:g}: something that "
            "its code uses has changed since the first step"
        )


class _NotKeptError(Exception):
    """A backward pass needs a tensor that was not kept."""


def _refuse_to_give(_: None) -> torch.Tensor:
    raise _NotKeptError


def _period(microbatch: int, per_rank: float) -> int:
    """Return how many steps apart later checks are: a power of two.

    `microbatch` is the number of its examples, and a rank's share of a step are `per_rank` microbatches through all
    stages. A backward pass counts as two forward passes.
    """
    check, step = 2 * microbatch + 3 * _NUM_GRADIENT_EXAMPLES, 3 * microbatch * per_rank
    period = _LEAST_PERIOD
    while check > _SHARE * step * period:
        period *= 2
    return period
