"""The example's mixture of experts as a task: the topic changes with every step, and is the same on all ranks."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples/scripts/mixture_of_experts.py"))
NUM_TOPICS: int = _EXAMPLE["NUM_TOPICS"]
_NUM_FEATURES: int = _EXAMPLE["NUM_FEATURES"]
_BATCH_SIZE: int = _EXAMPLE["BATCH_SIZE"]
_NUM_CLASSES: int = _EXAMPLE["NUM_CLASSES"]


class TopicsInTurn(nn.Module):
    """The example's model, which takes the next topic in each step of training."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture: Any = _EXAMPLE["Mixture"]()
        self.turn = 0

    def forward(self, features: Tensor) -> Tensor:
        topic = self.turn % NUM_TOPICS
        self.turn += self.training
        scores: Tensor = self.mixture(features, topic)
        return scores


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def task() -> Task:
    """Return the task that all contestants train."""
    return Task(
        name="unused-parameters",
        model=TopicsInTurn,
        batch=lambda generator: torch.randn(_BATCH_SIZE, _NUM_FEATURES, generator=generator),
        loss=lambda model, x: functional.cross_entropy(model(x), x[:, :_NUM_CLASSES].argmax(dim=1)),
        optimizer=_optimizer,
        batch_size=_BATCH_SIZE,
    )
