"""The task on which presets with stages are tried: ten layers in double precision, whose loss is a mean."""

import torch
from torch import Tensor, nn

from autosync import Task

NUM_LAYERS = 10
WIDTH = 12
BATCH_SIZE = 4


def _model() -> nn.Module:
    layers = [layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers).double()


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.flip(1)).square().mean()


def task() -> Task:
    return Task(
        name="ten layers",
        model=_model,
        batch=lambda generator: torch.randn(BATCH_SIZE, WIDTH, generator=generator, dtype=torch.float64),
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=BATCH_SIZE,
    )
