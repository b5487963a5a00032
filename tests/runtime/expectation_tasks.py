"""What the expectations of DDP users are tried on, beside the tasks of `tasks.py`."""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

WIDTH = 6
NUM_WORDS = 11


class Everything(nn.Module):
    """A tied weight, a layer that is called twice, a frozen and an unused one, and a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.output = nn.Linear(WIDTH, NUM_WORDS, bias=False)
        self.output.weight = self.words.weight
        self.register_buffer("constants", torch.rand(WIDTH))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) * self.constants
        logits: Tensor = self.output(self.frozen(torch.tanh(self.twice(torch.tanh(self.twice(x))))))
        return logits


def two_groups(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    all_of_them = list(parameters)
    matrices = [parameter for parameter in all_of_them if parameter.dim() > 1]
    others = [parameter for parameter in all_of_them if parameter.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 3e-3}], lr=1e-2)


def everything() -> Task:
    return Task(
        name="everything",
        model=lambda: Everything().double(),
        batch=lambda generator: torch.randint(NUM_WORDS, (3, 4), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=two_groups,
    )


def _numbers(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 5, generator=generator)


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def normed() -> Task:
    """Statistics of batches, which are buffers."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()

    return Task(
        name="normed",
        model=model,
        batch=lambda generator: _numbers(generator).double(),
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )


def layers() -> Task:
    """What single behaviours are tried on."""
    return Task(
        name="layers",
        model=lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double(),
        batch=lambda generator: _numbers(generator).double(),
        loss=_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02, weight_decay=0.1),
    )


def clipped() -> Task:
    """The same, declared to clip the norm of its gradients."""
    return replace(layers(), name="clipped", clip_norm=0.05)


def single() -> Task:
    """In float32, as training in mixed precision is; the loss may be scaled, and that is not declared."""
    return Task(
        name="single",
        model=lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)),
        batch=_numbers,
        loss=_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )


def scaled() -> Task:
    """The same, declared to scale its loss."""
    return replace(single(), name="scaled", loss_scaling=True)


def scaled_and_clipped() -> Task:
    """The same, declared to do both."""
    return replace(scaled(), name="scaled_and_clipped", clip_norm=0.05)


def scaled_adam() -> Task:
    """With an optimizer that counts its steps."""
    return replace(scaled(), name="scaled_adam", optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02))


def scaled_fused() -> Task:
    """With an optimizer that undoes the scale in its own kernels, and is called even where a step is left out."""

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.02, fused=True)

    return replace(scaled(), name="scaled_fused", optimizer=optimizer)


class Adaptive(torch.optim.Optimizer):
    """A number over all parameters, as that of D-Adaptation."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            group["d"] = max(group["d"], 0.01 * sum(float(p.grad.abs().sum()) for p in given))
            for parameter in given:
                parameter.sub_(parameter.grad, alpha=group["lr"] * group["d"])


class Marks(torch.optim.Optimizer):
    """Reads what the script has written onto parameters, as muP does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] * getattr(parameter, "lr_scale", 1.0))


class Empty(nn.Module):
    """A parameter without elements, one without axes, and a scripted layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 6)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        with warnings.catch_warnings():
            # torch advises against it; models have it.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            self.scripted = torch.jit.script(nn.Linear(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.scripted(torch.tanh(self.layer(x))) * self.scale + self.empty.sum()
        return found


def adaptive() -> Task:
    """With an optimizer that updates all variables together."""
    return replace(layers(), name="adaptive", optimizer=Adaptive)


def marked() -> Task:
    """With an optimizer that reads attributes of parameters."""
    return replace(layers(), name="marked", optimizer=Marks)


def empty() -> Task:
    """With a parameter that has no elements, one that has no axes, and a scripted layer."""
    return replace(layers(), name="empty", model=lambda: Empty().double())
