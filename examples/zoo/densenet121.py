"""DenseNet121 on images of ImageNet's shape (Huang et al., 2016): 7,978,856 parameters.

It has many small variables: each layer adds 32 channels to all earlier ones. To tune it:

    autosync tune examples/zoo/densenet121.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

BATCH_SIZE = 32
GROWTH = 32
BOTTLENECK = 4 * GROWTH
DEPTHS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, BOTTLENECK, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK)
        self.conv2 = nn.Conv2d(BOTTLENECK, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        y = self.conv2(functional.relu(self.norm2(y)))
        return torch.cat((x, y), dim=1)


class Transition(nn.Module):
    """Halves the channels and the resolution between two dense blocks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(functional.relu(self.norm(x))), 2)


class DenseNet121(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels = 64
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for block, depth in enumerate(DEPTHS):
            if block > 0:
                layers.append(Transition(channels))
                channels //= 2
            for _ in range(depth):
                layers.append(DenseLayer(channels))
                channels += GROWTH
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.features(images)).mean((2, 3))
        logits: Tensor = self.classifier(features)
        return logits


def task() -> Task:
    return Task(
        name="densenet121",
        model=DenseNet121,
        batch=partial(random_images, BATCH_SIZE, 224),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
        batch_size=BATCH_SIZE,
    )
