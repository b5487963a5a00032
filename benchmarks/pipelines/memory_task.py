"""The task of the benchmark of memory: blocks whose activations and parameters are large beside all else."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_BLOCKS = 8
MODULES_PER_BLOCK = 3
NARROW, WIDE = 8, 512
NUM_ROWS = 64
BATCH_SIZE = 16


class WideBlock(nn.Module):
    """Half of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


def draw(width: int, num_examples: int, generator: torch.Generator) -> Tensor:
    """Draw a batch of so many examples."""
    return torch.randn(num_examples, NUM_ROWS, width, generator=generator)


def task_of(width: int) -> Task:
    return Task(
        name=f"blocks of width {width}",
        model=lambda: nn.Sequential(*[WideBlock(width) for _ in range(NUM_BLOCKS)]),
        batch=lambda generator: draw(width, BATCH_SIZE, generator),
        loss=lambda model, x: (model(x) - x.flip(1)).square().mean(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        batch_size=BATCH_SIZE,
    )
