"""The model of `emitted_ddp.py` in plain torch, and as a task: 13 million parameters in layers of several sizes."""

import itertools

import torch
from torch import Tensor, nn

SIZES = (512, 2048, 2048, 1024, 1024, 1024, 512, 512, 512, 512)
BATCH_SIZE = 16


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(SIZES):
        layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def draw(generator: torch.Generator) -> Tensor:
    return torch.randn(BATCH_SIZE, SIZES[0], generator=generator)


def loss(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs: Tensor = model(inputs)
    return outputs.square().mean()


def optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type]


def task() -> object:
    """Return the task. The import is here, because the plain script imports this file and must not load autosync."""
    from autosync import Task

    return Task(name="layers", model=make_model, batch=draw, loss=loss, optimizer=optimizer, batch_size=BATCH_SIZE)
