"""A small residual network that learns to recognise the direction of stripes in noisy images.

It uses GroupNorm rather than BatchNorm. BatchNorm's statistics depend on how a batch is split among ranks and
GroupNorm's do not, so training on many ranks equals training on one. To tune it:

    autosync tune examples/convnet.py --cluster configs/clusters/local-2.yaml
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_DIRECTIONS = 8
SIDE = 24
WIDTHS = (32, 64, 128, 192)
BATCH_SIZE = 16

Batch = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Two convolutions beside a projection of the input; the first halves the image."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, width)
        self.shortcut = nn.Conv2d(channels, width, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTHS[0], 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(Block(*widths) for widths in pairwise((WIDTHS[0], *WIDTHS))))
        self.classify = nn.Linear(WIDTHS[-1], NUM_DIRECTIONS)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classify(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


def batch(generator: torch.Generator) -> Batch:
    """Return stripes in one of eight directions, shifted at random, under noise that is as strong as the stripes."""
    device = generator.device
    directions = torch.randint(NUM_DIRECTIONS, (BATCH_SIZE,), generator=generator, device=device)
    shift = torch.rand(BATCH_SIZE, 1, 1, generator=generator, device=device) * 2 * math.pi
    noise = torch.randn(BATCH_SIZE, 1, SIDE, SIDE, generator=generator, device=device)
    angle = (directions * (math.pi / NUM_DIRECTIONS)).view(-1, 1, 1)
    pixel = torch.arange(SIDE, device=device, dtype=torch.float32)
    distance = pixel * angle.cos() + pixel.view(-1, 1) * angle.sin()
    return torch.sin(distance + shift).unsqueeze(1) + noise, directions


def loss(model: nn.Module, batch: Batch) -> Tensor:
    images, directions = batch
    return functional.cross_entropy(model(images), directions)


def task() -> Task:
    return Task(
        name="convnet-example",
        model=ConvNet,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4),
        batch_size=BATCH_SIZE,
    )
