"""Finds the facts about an optimizer that plans depend on: elementwise or not, sparse gradients or not, its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.model import OptimizerSpec
from autosync.specs.profile.optimizer_trial import try_out
from autosync.specs.task import Task

# The classes of torch.optim whose update of an element depends on that element alone. Other classes count as not
# elementwise: their variables are updated whole, which is always right.
ELEMENTWISE = {
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
    "SparseAdam",
}


def optimizer_spec(optimizer: torch.optim.Optimizer, others: Iterable[torch.Tensor] = ()) -> OptimizerSpec:
    """Return the facts of an optimizer that has made a step, or of the optimizer that it replaces (`stands_for`).

    It counts as elementwise only if its class is in ELEMENTWISE and a trial, if one is possible, agrees. `others` are
    tensors that the trial must not touch.
    """
    stands_for = getattr(optimizer, "stands_for", None)
    if isinstance(stands_for, OptimizerSpec):
        return stands_for
    name = type(optimizer).__name__
    tried = try_out(optimizer, others)
    elementwise = _is_from_torch(optimizer) and name in ELEMENTWISE and (tried.elementwise or not tried.was_tried)
    return OptimizerSpec(
        name=name,
        elementwise=elementwise,
        per_variable=None if elementwise else tried.per_variable,
        sparse=_is_from_torch(optimizer) and _takes_sparse(name, optimizer.param_groups),
        state_slots=_state_slots(optimizer),
    )


def optimizer_notes(optimizer: torch.optim.Optimizer, spec: OptimizerSpec) -> tuple[str, ...]:
    """Return a note with the reason why all variables are updated together; none if they are updated separately."""
    if spec.updates_apart:
        return ()
    reason = try_out(optimizer).reason
    return (f"{spec.name} updates all variables together, after backward, with overlap backward alone: {reason}",)


def probe_optimizer(task: Task, *, sparse: bool) -> OptimizerSpec:
    """Return the facts of a task's optimizer from one step on a tiny parameter, for parameters without memory."""
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimizer = task_run.build_optimizer(task, [parameter])
    gradient = torch.ones(2, 3)
    parameter.grad = gradient.to_sparse(1) if sparse else gradient
    task_run.step_optimizer(task, optimizer, lambda: torch.zeros(()))
    return optimizer_spec(optimizer)


def _is_from_torch(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _takes_sparse(name: str, groups: list[dict[str, Any]]) -> bool:
    match name:
        case "SparseAdam":
            return True
        case "SGD":
            return all(group["momentum"] == 0 and group["weight_decay"] == 0 for group in groups)
        case "Adagrad":
            return all(group["weight_decay"] == 0 for group in groups)
    return False


def _state_slots(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of state tensors of a parameter that have its shape; the largest number of all parameters."""
    counts = [0]
    for parameter, state in optimizer.state.items():
        # A number such as the step count has the shape of a parameter without axes.
        if parameter.dim() > 0:
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            counts.append(sum(tensor.shape == parameter.shape for tensor in tensors))
    return max(counts)
