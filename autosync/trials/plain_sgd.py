"""Training with plain SGD, in which one step shows the averaged gradients: it changes parameters only by them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from autosync.plan.bundling import bundled
from autosync.specs.model import OptimizerSpec
from autosync.specs.task import Task
from autosync.strategy.bundle import Bundle

LEARNING_RATE = 2.0**20
"""A rate so large that a change is not lost in the sum with its parameter; as a power of two, it rounds nothing."""


def with_plain_sgd(task: Task) -> Task:
    """Return the task with plain SGD at LEARNING_RATE, or at rate 1 if a parameter is float16."""
    return replace(task, optimizer=_plain_sgd)


def _plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    found = list(parameters)
    is_small = any(parameter.dtype == torch.float16 for parameter in found)
    return torch.optim.SGD(found, lr=1.0 if is_small else LEARNING_RATE)


def with_plain_sgd_spec(bundle: Bundle) -> Bundle:
    """Return the bundle for the task with that optimizer."""
    model = replace(bundle.model, optimizer=OptimizerSpec(name="SGD", elementwise=True, sparse=True))
    return bundled(bundle.strategy, model, bundle.cluster)
