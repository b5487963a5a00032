"""The models that `stock_ranks.py` trains: each has something that buckets can get wrong."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Conv(nn.Module):
    """One weight is channels last, one layer is in float64: buckets of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.second = nn.Conv2d(8, 6, 2, bias=False)
        self.last = nn.Linear(6 * 9, 3).double()

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.second(functional.relu(self.first(images))))
        y: Tensor = self.last(x.flatten(1).double())
        return y


class Tied(nn.Module):
    """A transformer whose output is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(17, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.output = nn.Linear(8, 17, bias=False)
        self.output.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        y: Tensor = self.output(self.scale * self.layer(self.words(text)))
        return y


def conv_loss(model: nn.Module, lots: torch.Generator) -> Tensor:
    return functional.cross_entropy(
        model(torch.randn(4, 3, 6, 6, generator=lots)), torch.randint(3, (4,), generator=lots)
    )


def text_loss(model: nn.Module, lots: torch.Generator) -> Tensor:
    text = torch.randint(17, (3, 7), generator=lots)
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


Loss = Callable[[nn.Module, torch.Generator], Tensor]
MODELS: dict[str, tuple[type[nn.Module], Loss]] = {
    "conv": (Conv, conv_loss),
    "tied": (Tied, text_loss),
}


def made(name: str) -> tuple[Any, Loss]:
    """The same model on every rank."""
    torch.manual_seed(3)
    kind, loss = MODELS[name]
    return kind(), loss
