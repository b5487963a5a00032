"""Small tasks in float64, so that equal means equal: each has something that is easy to get wrong."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

WIDTH = 8
NUM_WORDS = 13


class TiedTransformer(nn.Module):
    """The output tied to the embedding, and a parameter without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11), nn.GELU(), nn.Linear(11, WIDTH))
        self.output = nn.Linear(WIDTH, NUM_WORDS, bias=False)
        self.output.weight = self.words.weight
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        query, key, value = self.query_key_value(x).chunk(3, dim=2)
        x = x + self.scale * functional.scaled_dot_product_attention(query, key, value)
        logits: Tensor = self.output(x + self.feed_forward(x))
        return logits


def two_groups(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    all_of_them = list(parameters)
    matrices = [parameter for parameter in all_of_them if parameter.dim() > 1]
    others = [parameter for parameter in all_of_them if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 3e-3, "foreach": True}]
    return torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)


def transformer() -> Task:
    return Task(
        name="tied-transformer",
        model=lambda: TiedTransformer().double(),
        batch=lambda generator: torch.randint(NUM_WORDS, (2, 6), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=two_groups,
        batch_size=2,
    )


def convnet() -> Task:
    """Weights whose memory is in another order than their axes (channels last)."""

    def model() -> nn.Module:
        layers = nn.Sequential(
            nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 2, bias=False), nn.Flatten(), nn.Linear(36, 3)
        )
        return layers.double().to(memory_format=torch.channels_last)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(2, 3, 6, 6, generator=generator, dtype=torch.float64)
        return images, torch.randint(3, (2,), generator=generator)

    return Task(
        name="convnet",
        model=model,
        batch=batch,
        loss=lambda model, pair: functional.cross_entropy(model(pair[0]), pair[1]),
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
        batch_size=2,
    )


class Odd(nn.Module):
    """One layer is frozen and one is never used; a mask is a buffer of truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.last = nn.Linear(7, 1)
        self.register_buffer("mask", torch.rand(7) > 0.3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.frozen(self.first(x))) * self.mask)
        return y


def _numbers(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def odd() -> Task:
    return Task(
        name="odd",
        model=lambda: Odd().double(),
        batch=_numbers,
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
        batch_size=4,
    )


def clipped() -> Task:
    """Three microsteps a step, and a global norm that is clipped."""
    return Task(
        name="clipped",
        model=lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 1)).double(),
        batch=_numbers,
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
        batch_size=4,
        accumulation_steps=3,
        clip_norm=0.05,
    )


def small() -> Task:
    """What single behaviours are tried on."""
    return Task(
        name="small",
        model=lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double(),
        batch=_numbers,
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02, weight_decay=0.1),
        batch_size=4,
    )


class Shared(nn.Module):
    """Gradients that share memory under torch, each of which is complete a while before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.added = nn.Parameter(torch.randn(6))
        self.left = nn.Parameter(torch.randn(2, 3))
        self.right = nn.Parameter(torch.randn(3, 2))
        self.last = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        # Nothing is broadcast: what arrives for the parameter is the gradient that goes on to the first layer.
        y = torch.tanh(_late(self.first(x)) + self.added.unsqueeze(0))
        # Both views have one gradient.
        z: Tensor = self.last(y * (_late(self.left.view(6)) + self.right.view(6)))
        return z


def _late(x: Tensor) -> Tensor:
    """The same; its gradient goes on when what came before has had time to travel."""
    if x.requires_grad:
        x.register_hook(lambda _: time.sleep(0.05))  # type: ignore[no-untyped-call]
    return x


def shared() -> Task:
    return Task(
        name="shared",
        model=lambda: Shared().double(),
        batch=lambda generator: torch.randn(1, 5, generator=generator, dtype=torch.float64),
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        batch_size=1,
    )


def half() -> Task:
    """In bfloat16."""
    task = small()

    def batch(generator: torch.Generator) -> Tensor:
        return _numbers(generator).bfloat16()

    return Task(
        name="half",
        model=lambda: task.model().bfloat16(),
        batch=batch,
        loss=task.loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def tokens() -> Task:
    """A loss that is a mean over unmasked positions, of which batches have unequally many, and some none."""

    def batch(generator: torch.Generator) -> Tensor:
        text = torch.randint(NUM_WORDS, (4, 6), generator=generator)
        kept = torch.rand(4, 1, generator=generator) > 0.5
        return torch.where(kept & (torch.rand(4, 6, generator=generator) < 0.6), text, -1)

    def loss(model: nn.Module, text: Tensor) -> Tensor:
        logits = model(text.clamp_min(0))
        return functional.cross_entropy(logits.flatten(0, 1), text.flatten(), ignore_index=-1)

    return Task(
        name="tokens",
        model=lambda: nn.Sequential(nn.Embedding(NUM_WORDS, 5), nn.Linear(5, NUM_WORDS)).double(),
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=4,
        weight=lambda text: int((text >= 0).sum()),
    )


EXACT = (transformer, convnet, odd, clipped)

assert len({task().name for task in itertools.chain(EXACT, (small, shared, half, tokens))}) == 8


def rows() -> Task:
    """A table with sparse gradients; words occur several times in a batch."""
    return Task(
        name="rows",
        model=lambda: nn.Sequential(nn.Embedding(9, 5, sparse=True), nn.Linear(5, 3)).double(),
        batch=lambda generator: torch.randint(9, (4, 6), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text).flatten(0, 1), text.flatten() % 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )


def masked_rows() -> Task:
    """The same over unmasked positions, of which some batches have none."""

    def loss(model: nn.Module, text: Tensor) -> Tensor:
        labels = torch.where(text < 0, -1, text % 3)
        return functional.cross_entropy(model(text.clamp_min(0)).flatten(0, 1), labels.flatten(), ignore_index=-1)

    masked = tokens()
    return replace(
        rows(),
        name="masked_rows",
        batch=lambda generator: masked.batch(generator).clamp_max(8),
        loss=loss,
        weight=masked.weight,
    )
