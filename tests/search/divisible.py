"""Small tasks: one that stages train, and others that they refuse."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from autosync import Task


def _layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), *between, nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def task() -> Task:
    return Task(
        name="divisible",
        model=_layers,
        batch=lambda generator: torch.randn(4, 8, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        batch_size=4,
    )


def with_batch_norm() -> Task:
    return replace(task(), model=lambda: _layers(nn.BatchNorm1d(16)))


def with_a_sum() -> Task:
    return replace(task(), loss=lambda model, x: model(x).square().sum())


def with_a_lazy_layer() -> Task:
    return replace(task(), model=lambda: nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, 1)))


def with_a_mapped_function() -> Task:
    return replace(task(), loss=lambda model, x: torch.vmap(torch.square)(model(x)).mean())


def with_a_hooked_step() -> Task:
    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.01)
        made.register_step_post_hook(lambda *_: None)
        return made

    return replace(task(), optimizer=optimizer)


def undeclared() -> Task:
    return replace(task(), batch_size=1)


def unequal() -> Task:
    def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 8, generator=generator), torch.zeros(3)

    return replace(task(), batch=draw, loss=lambda model, batch: model(batch[0]).square().mean())
