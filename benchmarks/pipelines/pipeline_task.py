"""The task of the benchmark: equal blocks, of which each stage gets as many as the others."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_BLOCKS = 8
MODULES_PER_BLOCK = 3
WIDTH = 128
NUM_ROWS = 64
BATCH_SIZE = 16
LEARNING_RATE = 0.05


class Block(nn.Module):
    """Half of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


def blocks() -> nn.Sequential:
    """Build the model, with the same weights each time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return nn.Sequential(*[Block() for _ in range(NUM_BLOCKS)])


def draw(num_examples: int, generator: torch.Generator) -> Tensor:
    """Draw a batch of so many examples."""
    return torch.randn(num_examples, NUM_ROWS, WIDTH, generator=generator)


def distance(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of outputs."""
    return (output - target).square().mean()


def task() -> Task:
    return Task(
        name="equal blocks",
        model=blocks,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=lambda model, x: distance(model(x), x.flip(1)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
        batch_size=BATCH_SIZE,
    )
