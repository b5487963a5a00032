"""Small tasks to profile, and summaries of their model specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autosync import Task
from autosync.specs.model import ModelSpec


def task(model: Callable[[], nn.Module], *, inputs: Any = None, lr: float = 0.01, **fields: Any) -> Task:
    """A task whose loss is the mean of the model's output on fixed inputs (by default four rows of eight numbers)."""
    batch = torch.ones(4, 8) if inputs is None else inputs
    standard = {
        "model": model,
        "batch": lambda generator: batch,
        "loss": lambda model, batch: model(batch).float().mean(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=lr),
    }
    return Task(**standard | fields)


def orders(model: ModelSpec) -> tuple[list[str], list[int]]:
    """Names in the order of ready, and each variable's use in the same order."""
    variables = sorted(model.variables, key=lambda variable: variable.ready)
    return [variable.name for variable in variables], [variable.use for variable in variables]


def kinds(model: ModelSpec) -> dict[str, str]:
    return {variable.name: variable.kind for variable in model.variables}
