"""What a plan must know of an optimizer: is it elementwise, does it take sparse gradients, what does it keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.model import OptimizerSpec
from autosync.specs.task import Task

# Of torch.optim's classes those whose update of an element depends on that element alone. A class that is not
# listed, or the user's own, counts as not elementwise: its variables are then updated whole, which is always right.
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


def optimizer_spec(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """The facts of an optimizer that has made a step, or of the one that it stands for (`stands_for`)."""
    stands_for = getattr(optimizer, "stands_for", None)
    if isinstance(stands_for, OptimizerSpec):
        return stands_for
    name = type(optimizer).__name__
    return OptimizerSpec(
        name=name,
        elementwise=_is_from_torch(optimizer) and name in ELEMENTWISE,
        sparse=_is_from_torch(optimizer) and _takes_sparse(name, optimizer.param_groups),
        state_slots=_state_slots(optimizer),
    )


def probe_optimizer(task: Task, *, sparse: bool) -> OptimizerSpec:
    """The facts of a task's optimizer from one step on a tiny parameter, where the real ones have no memory."""
    parameter = nn.Parameter(torch.zeros(2, 3))
    optimizer = task_run.build_optimizer(task, [parameter])
    gradient = torch.ones(2, 3)
    parameter.grad = gradient.to_sparse(1) if sparse else gradient
    task_run.step_optimizer(task, optimizer)
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
    """The most tensors of its own shape that any parameter has in the optimizer's state."""
    counts = [0]
    for parameter, state in optimizer.state.items():
        # A number such as the step count has the shape of a parameter without axes.
        if parameter.dim() > 0:
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            counts.append(sum(tensor.shape == parameter.shape for tensor in tensors))
    return max(counts)
