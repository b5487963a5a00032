"""Models in plain torch, for whoever profiles them and for scripts that know nothing of autosync."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Blocks whose norm is declared last and used first, and a head that is declared before them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 100)
        self.ups = nn.ModuleList(nn.Linear(32, 64) for _ in range(4))
        self.downs = nn.ModuleList(nn.Linear(64, 32) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        for up, down, norm in zip(self.ups, self.downs, self.norms, strict=True):
            inputs = inputs + down(torch.relu(up(norm(inputs))))
        result: Tensor = self.head(inputs)
        return result


class Mixed(nn.Module):
    """Two dtypes, taking turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(32, 32, dtype=torch.float64 if index % 2 else torch.float32) for index in range(6)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs.to(layer.weight.dtype))
        return inputs


class Idle(nn.Module):
    """A layer in the middle that is never used, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.never = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64)
        self.last = nn.Linear(64, 32)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.last(self.frozen(self.first(inputs)))
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "mixed": Mixed, "idle": Idle}


def draw(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 32, generator=generator)


def loss(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs: Tensor = model(inputs)
    return outputs.square().mean()
