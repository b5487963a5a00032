"""The tasks of `exactness.py`: four small models, each with a difficult property, and several optimizers.

There is no BatchNorm, whose statistics differ between ranks, and no dropout, whose random numbers do. Losses are means
over examples, and the first axis of every tensor of a batch counts its `batch_size` examples, so shares can divide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

# Set explicitly, so that Adagrad's sparse updates do not warn.
torch.sparse.check_sparse_tensor_invariants.disable()

WIDTH = 16
NUM_WORDS = 97
NUM_USERS = 120
NUM_ITEMS = 31

Parameters = Iterable[nn.Parameter]


class ConvNet(nn.Module):
    """Weights with four axes, one of them without a bias, in the memory format `channels_last` or the default one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3)
        self.second = nn.Conv2d(12, 6, 2, bias=False)
        self.last = nn.Linear(54, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(images))))
        labels: Tensor = self.last(x.flatten(1))
        return labels


class TiedTransformer(nn.Module):
    """The output is tied to the embedding, a parameter has no axes, and a key bias has a true gradient of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 43), nn.GELU(), nn.Linear(43, WIDTH))
        self.output = nn.Linear(WIDTH, NUM_WORDS, bias=False)
        self.output.weight = self.words.weight
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        query, key, value = self.query_key_value(x).chunk(3, dim=2)
        x = x + self.scale * functional.scaled_dot_product_attention(query, key, value)
        logits: Tensor = self.output(x + self.feed_forward(x))
        return logits


class Ratings(nn.Module):
    """Neural collaborative filtering: sparse gradients of two tables, and dense ones of the layers over both."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, 9, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, 7, sparse=True)
        self.layers = nn.Sequential(nn.Linear(16, 21), nn.Tanh(), nn.Linear(21, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.unbind(1)
        score: Tensor = self.layers(torch.cat((self.users(users), self.items(items)), dim=1))
        return score


class Factorized(nn.Module):
    """Only two tables with sparse gradients, for optimizers that accept no others."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, 9, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, 9, sparse=True)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.unbind(1)
        return (self.users(users) * self.items(items)).sum(1, keepdim=True)


class Unused(nn.Module):
    """One layer is frozen and one is never used; a mask is a boolean buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 37)
        self.frozen = nn.Linear(37, 37).requires_grad_(requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.last = nn.Linear(37, 1)
        self.register_buffer("mask", torch.rand(37) > 0.3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.frozen(self.first(x))) * self.mask)
        return y


def _images(generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    images = torch.randn(3, 3, 6, 6, generator=generator).to(dtype)
    return images, torch.randint(5, (3,), generator=generator)


def _label_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def conv(dtype: torch.dtype, optimizer: Callable[[Parameters], torch.optim.Optimizer], *, last: bool = False) -> Task:
    layout = torch.channels_last if last else torch.contiguous_format
    return Task(
        model=lambda: ConvNet().to(dtype).to(memory_format=layout),
        batch=lambda generator: _images(generator, dtype),
        loss=_label_loss,
        optimizer=optimizer,
        batch_size=3,
    )


def transformer(dtype: torch.dtype, optimizer: Callable[[Parameters], torch.optim.Optimizer]) -> Task:
    return Task(
        model=lambda: TiedTransformer().to(dtype),
        batch=lambda generator: torch.randint(NUM_WORDS, (2, 8), generator=generator),
        loss=lambda model, text: functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()),
        optimizer=optimizer,
        batch_size=2,
    )


def _pairs(generator: torch.Generator) -> Tensor:
    users = torch.randint(NUM_USERS, (8,), generator=generator)
    # Items occur repeatedly in a batch: their rows add up.
    return torch.stack((users, torch.randint(NUM_ITEMS, (8,), generator=generator)), dim=1)


def ratings(
    dtype: torch.dtype, model: Callable[[], nn.Module], optimizer: Callable[[Parameters], torch.optim.Optimizer]
) -> Task:
    return Task(
        model=lambda: model().to(dtype),
        batch=_pairs,
        loss=lambda model, pairs: (model(pairs) - 1.0).square().mean(),
        optimizer=optimizer,
        batch_size=8,
    )


def unused(dtype: torch.dtype, optimizer: Callable[[Parameters], torch.optim.Optimizer]) -> Task:
    return Task(
        model=lambda: Unused().to(dtype),
        batch=lambda generator: torch.randn(4, 10, generator=generator).to(dtype),
        loss=lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(),
        optimizer=optimizer,
        batch_size=4,
    )


class Everything(nn.Module):
    """A convolution, a table with sparse gradients and linear layers: 1.4 MB, most of it in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 16, 3)
        self.words = nn.Embedding(400, 32, sparse=True)
        self.hidden = nn.Linear(16 * 6 * 6 + 32, 256)
        self.last = nn.Linear(256, 10)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        seen = torch.tanh(self.convolution(images)).flatten(1)
        both = torch.cat((seen, self.words(words).mean(1)), dim=1)
        labels: Tensor = self.last(torch.tanh(self.hidden(both)))
        return labels


def everything(dtype: torch.dtype) -> Task:
    """Return a task for every preset: plain SGD, and each kind of variable."""
    return Task(
        model=lambda: Everything().to(dtype),
        batch=lambda generator: (
            torch.randn(4, 3, 8, 8, generator=generator, dtype=dtype),
            torch.randint(400, (4, 5), generator=generator),
            torch.randint(10, (4,), generator=generator),
        ),
        loss=lambda model, batch: functional.cross_entropy(model(*batch[:2]), batch[2]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        batch_size=4,
    )


def momentum(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def adam(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def two_groups(parameters: Parameters) -> torch.optim.Optimizer:
    all_of_them = list(parameters)
    matrices = [parameter for parameter in all_of_them if parameter.dim() > 1]
    others = [parameter for parameter in all_of_them if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 3e-3, "foreach": True}]
    return torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)


def _plain(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _sparse_adam(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(parameters), lr=0.02)


def _adagrad(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=0.05)


TASKS: dict[str, Callable[[torch.dtype], Task]] = {
    "conv, SGD": lambda dtype: conv(dtype, momentum),
    "conv, AdamW": lambda dtype: conv(dtype, two_groups, last=True),
    "transformer, AdamW": lambda dtype: transformer(dtype, two_groups),
    "transformer, Adam, accumulated": lambda dtype: replace(transformer(dtype, adam), accumulation_steps=2),
    "transformer, SGD, clipped": lambda dtype: replace(transformer(dtype, momentum), clip_norm=0.5),
    "ratings, SGD": lambda dtype: ratings(dtype, Ratings, _plain),
    "ratings, Adagrad": lambda dtype: ratings(dtype, Ratings, _adagrad),
    "ratings, SparseAdam": lambda dtype: ratings(dtype, Factorized, _sparse_adam),
    "unused, Adam": lambda dtype: unused(dtype, adam),
    "unused, SGD": lambda dtype: unused(dtype, momentum),
}
EVERYTHING = "everything, SGD"
"""The name of the task on which presets are tried; it is not drawn with the others."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def task_of(name: str, dtype: str) -> Task:
    """Return a task in a precision."""
    make = everything if name == EVERYTHING else TASKS[name]
    return replace(make(DTYPES[dtype]), name=f"{name}, {dtype}")
