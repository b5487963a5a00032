"""A task: what the user wants trained, as a function `task()` in a Python file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Model, batch, loss and optimizer of a training job.

    `model` is called once on every rank after seeding, `batch` draws one rank's batch for one (micro)step from a generator
    that differs by rank, `loss` is the model's mean loss on it. `accumulation_steps` microsteps make one optimizer step.
    `clip_norm` and `loss_scaling` declare that the training clips the global gradient norm or scales the
    loss, for then every gradient must be there before the first update.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    name: str = ""
    batch_size: int = 1
    accumulation_steps: int = 1
    clip_norm: float | None = None
    loss_scaling: bool = False
