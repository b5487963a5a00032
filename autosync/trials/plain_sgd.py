"""Training in which one step shows the averaged gradients: parameters change by them and by nothing else."""

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
"""So large that nothing of a change is lost in the sum with its parameter; a power of two, which rounds nothing."""


def with_plain_sgd(task: Task) -> Task:
    """The task with an optimizer that takes gradients off parameters, times a large number where these have room."""
    return replace(task, optimizer=_plain_sgd)


def _plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    found = list(parameters)
    is_small = any(parameter.dtype == torch.float16 for parameter in found)
    return torch.optim.SGD(found, lr=1.0 if is_small else LEARNING_RATE)


def with_plain_sgd_spec(bundle: Bundle) -> Bundle:
    """The bundle for the task with that optimizer."""
    model = replace(bundle.model, optimizer=OptimizerSpec(name="SGD", elementwise=True, sparse=True))
    return bundled(bundle.strategy, model, bundle.cluster)
