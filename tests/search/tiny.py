"""Tasks with steps of a few milliseconds."""

import os
import time

import torch
from torch import nn

from autosync import Task


def task() -> Task:
    return Task(
        name="tiny",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
        batch=lambda generator: torch.randn(4, 8, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )


def hangs_in_trials() -> Task:
    """Profiles well and never ends a step on a rank."""
    fine = task()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if "RANK" in os.environ:
            time.sleep(600)
        return fine.loss(model, x)

    return Task(name="tiny", model=fine.model, batch=fine.batch, loss=loss, optimizer=fine.optimizer)


def slow_in_trials() -> Task:
    """A step takes a few milliseconds here and 20 ms more on a rank: there is something to gain, and time to strike."""
    fine = task()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if "RANK" in os.environ:
            time.sleep(0.02)
        return fine.loss(model, x)

    return Task(name="slow", model=fine.model, batch=fine.batch, loss=loss, optimizer=fine.optimizer)
