"""SqueezeNet 1.1 on images of ImageNet's shape (Iandola et al., 2016): 1,235,496 parameters.

It has only convolutions, none of them large. To tune it:

    autosync tune examples/zoo/squeezenet.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

BATCH_SIZE = 32
# Per fire module: channels after squeezing, and after each of the two expansions; None halves the image.
FIRES = ((16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256))


class Fire(nn.Module):
    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        return torch.cat((functional.relu(self.expand1x1(x)), functional.relu(self.expand3x3(x))), dim=1)


class SqueezeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels = 64
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
        for fire in FIRES:
            if fire is None:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            else:
                layers.append(Fire(channels, *fire))
                channels = 2 * fire[1]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(channels, 1000, 1), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images)).mean((2, 3))
        return logits


def task() -> Task:
    return Task(
        name="squeezenet",
        model=SqueezeNet,
        batch=partial(random_images, BATCH_SIZE, 224),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.04, momentum=0.9, weight_decay=2e-4),
        batch_size=BATCH_SIZE,
    )
