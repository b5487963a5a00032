"""Runs the parts of a task: builds the model and the optimizer, draws a batch, computes the loss.

Profiles and trials run tasks through these functions. So each mistake in the user's code is reported with its file and
line, and returned values are checked before they are used.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from autosync.specs.task import Task
from autosync.specs.task_file import task_code, wrong_result

if TYPE_CHECKING:
    import torch
    from torch import nn


def build_model(task: Task) -> nn.Module:
    """Build the task's model; raise TaskError unless it has a trainable parameter."""
    from torch import nn

    with task_code(task, "model()", task.model):
        model = task.model()
    if not isinstance(model, nn.Module):
        raise wrong_result(
            task, task.model, f"model() returned {_describe(model)}", rule="must return a torch.nn.Module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        what = "the model has no trainable parameters"
        hint = "all are frozen" if any(True for _ in model.parameters()) else "it has no parameters at all"
        raise wrong_result(task, task.model, what, rule="at least one needs a gradient", hint=hint)
    return model


def build_optimizer(task: Task, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the task's optimizer over the given parameters."""
    import torch

    optimizer: Any
    with task_code(task, "optimizer(parameters)", task.optimizer):
        optimizer = task.optimizer(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = f"optimizer(parameters) returned {_describe(optimizer)}"
        raise wrong_result(task, task.optimizer, what, rule="must return a torch.optim.Optimizer")
    return optimizer


def draw_batch(task: Task, generator: torch.Generator) -> Any:
    """Draw one batch from the generator."""
    with task_code(task, "batch(generator)", task.batch):
        return task.batch(generator)


def batch_weight(task: Task, batch: Any) -> float:
    """Return how much a batch weighs, by a task that says so."""
    weight: Any = None
    assert task.weight is not None, "called for tasks that weigh their batches"
    with task_code(task, "weight(batch)", task.weight):
        weight = task.weight(batch)
        weight = weight if isinstance(weight, int) else float(weight)
    if not 0 <= weight < math.inf:
        raise wrong_result(
            task, task.weight, f"weight(batch) returned {weight}", rule="must return a finite number of 0 or more"
        )
    return float(weight)


def compute_loss(task: Task, model: nn.Module, batch: Any) -> torch.Tensor:
    """Compute the loss of a batch: one number that depends on the parameters."""
    import torch

    with task_code(task, "loss(model, batch)", task.loss):
        loss = task.loss(model, batch)
    if not isinstance(loss, torch.Tensor):
        raise wrong_result(
            task, task.loss, f"loss(model, batch) returned {_describe(loss)}", rule="must return a Tensor"
        )
    if loss.numel() != 1:
        what = f"the loss has {loss.numel()} elements"
        raise wrong_result(task, task.loss, what, rule="must be one number", hint="take the mean over the batch")
    if not loss.requires_grad:
        what = "the loss depends on no trainable parameter"
        raise wrong_result(task, task.loss, what, rule="must have a gradient", hint="detach() or no_grad() cut it off")
    return loss


def run_backward(task: Task, loss: torch.Tensor) -> None:
    """Run the backward pass, which may call the user's code."""
    with task_code(task, "the backward pass", task.loss):
        loss.backward()  # type: ignore[no-untyped-call]


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether step() of an optimizer needs a closure that computes loss and gradients (LBFGS)."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def step_optimizer(
    task: Task, optimizer: torch.optim.Optimizer, closure: Callable[[], torch.Tensor] | None = None
) -> None:
    """Take one optimizer step, with a closure if the optimizer needs one."""
    with task_code(task, "optimizer.step()", task.optimizer):
        if closure is not None and needs_closure(optimizer):
            optimizer.step(closure)  # type: ignore[arg-type] # torch says float: a loss is a tensor
        else:
            optimizer.step()


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with every tensor on the device."""
    return map_tensors(batch, lambda tensor: tensor.to(device))


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with `function` applied to every tensor.

    It finds tensors at any depth in lists, tuples, mappings and dataclasses.
    """
    import torch

    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(item, function) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(item, function) for item in batch)
    if isinstance(batch, MutableMapping):
        # A copy keeps the attributes of a mapping of the user's own class.
        mapping = copy.copy(batch)
        mapping.update({key: map_tensors(item, function) for key, item in batch.items()})
        return mapping
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [f.name for f in dataclasses.fields(batch) if f.init]
        return dataclasses.replace(batch, **{name: map_tensors(getattr(batch, name), function) for name in names})
    return batch


def _describe(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
