"""The tasks of `runtime_vs_ddp.py`: small enough for one thread a rank, with the parameters of real models."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/zoo"))
from _blocks import EncoderLayer, classification_loss, random_images
from _resnet import Bottleneck, ResNet

NUM_IDS = 50_000


class Transformer(nn.Module):
    """A Transformer of 10 million parameters, with its output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8000, 256)
        layer_options: dict[str, Any] = {"activation": functional.gelu, "dropout": 0.0}
        self.layers = nn.Sequential(*(EncoderLayer(256, 4, 1024, **layer_options) for _ in range(10)))

    def forward(self, text: Tensor) -> Tensor:
        return functional.linear(self.layers(self.words(text)), self.words.weight)


class Ratings(nn.Module):
    """Neural collaborative filtering with the layer sizes of examples/zoo/ncf.py and 100,000 users and items."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.factors = nn.ModuleList(nn.Embedding(NUM_IDS, 64, sparse=sparse) for _ in range(2))
        self.inputs = nn.ModuleList(nn.Embedding(NUM_IDS, 128, sparse=sparse) for _ in range(2))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((256, 256, 128, 64)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.score = nn.Linear(128, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        mixed = self.factors[0](users) * self.factors[1](items)
        hidden = self.layers(torch.cat((self.inputs[0](users), self.inputs[1](items)), dim=1))
        score: Tensor = self.score(torch.cat((mixed, hidden), dim=1))
        return score


def convnet() -> Task:
    return Task(
        name="convnet",
        model=lambda: ResNet(Bottleneck, (3, 4, 6, 3)),
        batch=lambda generator: random_images(8, 64, generator),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )


def transformer() -> Task:
    return Task(
        name="transformer",
        model=Transformer,
        batch=lambda generator: torch.randint(8000, (4, 64), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    )


def many() -> Task:
    """Return a task with 1,000 parameters, so small that their compute is negligible."""
    return Task(
        name="many",
        model=lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(500))),
        batch=lambda generator: torch.randn(2, 4, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def _rate(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one per cent of the users and items, each at least once."""
    users, items = torch.randint(NUM_IDS, (2, NUM_IDS // 100), generator=generator)
    return users, items


def sparse() -> Task:
    return Task(
        name="sparse",
        model=lambda: Ratings(sparse=True),
        batch=_rate,
        loss=lambda model, batch: model(*batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def dense() -> Task:
    """Return the task `sparse` with dense gradients."""
    task = sparse()
    return Task(
        name="dense", model=lambda: Ratings(sparse=False), batch=_rate, loss=task.loss, optimizer=task.optimizer
    )


TASKS = {task.__name__: task for task in (convnet, transformer, many, sparse, dense)}
