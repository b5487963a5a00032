"""InceptionV3 with its auxiliary head on 299x299 images (Szegedy et al., 2015): 27,161,264 parameters.

Branches are parallel, so gradients do not become ready in the order of declaration. To tune it:

    autosync tune examples/zoo/inception_v3.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import ImageBatch, random_images
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

BATCH_SIZE = 32
AUXILIARY_WEIGHT = 0.4
Kernel = int | tuple[int, int]


class Conv(nn.Module):
    """A convolution with batch norm and ReLU. It keeps the image's size, except with a stride or `valid`."""

    def __init__(self, channels: int, outputs: int, kernel: Kernel, *, stride: int = 1, valid: bool = False) -> None:
        super().__init__()
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (0, 0) if valid or stride > 1 else (height // 2, width // 2)
        self.conv = nn.Conv2d(channels, outputs, (height, width), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


class Branches(nn.Module):
    """Runs every branch on the same input and joins their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def pooled(channels: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), Conv(channels, outputs, 1))


def mixed_35(channels: int, pool_outputs: int) -> nn.Module:
    return Branches(
        Conv(channels, 64, 1),
        nn.Sequential(Conv(channels, 48, 1), Conv(48, 64, 5)),
        nn.Sequential(Conv(channels, 64, 1), Conv(64, 96, 3), Conv(96, 96, 3)),
        pooled(channels, pool_outputs),
    )


def reduce_35_to_17(channels: int) -> nn.Module:
    return Branches(
        Conv(channels, 384, 3, stride=2),
        nn.Sequential(Conv(channels, 64, 1), Conv(64, 96, 3), Conv(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def mixed_17(inner: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    return Branches(
        Conv(768, 192, 1),
        nn.Sequential(Conv(768, inner, 1), Conv(inner, inner, row), Conv(inner, 192, column)),
        nn.Sequential(
            Conv(768, inner, 1),
            Conv(inner, inner, column),
            Conv(inner, inner, row),
            Conv(inner, inner, column),
            Conv(inner, 192, row),
        ),
        pooled(768, 192),
    )


def reduce_17_to_8() -> nn.Module:
    return Branches(
        nn.Sequential(Conv(768, 192, 1), Conv(192, 320, 3, stride=2)),
        nn.Sequential(
            Conv(768, 192, 1),
            Conv(192, 192, (1, 7)),
            Conv(192, 192, (7, 1)),
            Conv(192, 192, 3, stride=2),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def mixed_8(channels: int) -> nn.Module:
    def row_and_column() -> nn.Module:
        return Branches(Conv(384, 384, (1, 3)), Conv(384, 384, (3, 1)))

    return Branches(
        Conv(channels, 320, 1),
        nn.Sequential(Conv(channels, 384, 1), row_and_column()),
        nn.Sequential(Conv(channels, 448, 1), Conv(448, 384, 3), row_and_column()),
        pooled(channels, 192),
    )


class InceptionV3(nn.Module):
    """InceptionV3, which returns the logits and those of the auxiliary head; only training needs the latter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 32, 3, stride=2),
            Conv(32, 32, 3, valid=True),
            Conv(32, 64, 3),
            nn.MaxPool2d(3, stride=2),
            Conv(64, 80, 1),
            Conv(80, 192, 3, valid=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.middle = nn.Sequential(
            mixed_35(192, 32),
            mixed_35(256, 64),
            mixed_35(288, 64),
            reduce_35_to_17(288),
            *(mixed_17(inner) for inner in (128, 160, 160, 192)),
        )
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, stride=3),
            Conv(768, 128, 1),
            Conv(128, 768, 5, valid=True),
            nn.Flatten(),
            nn.Linear(768, 1000),
        )
        self.top = nn.Sequential(reduce_17_to_8(), mixed_8(1280), mixed_8(2048))
        self.fc = nn.Sequential(nn.Dropout(), nn.Linear(2048, 1000))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.middle(self.stem(images))
        return self.fc(self.top(middle).mean((2, 3))), self.auxiliary(middle)


def loss(model: nn.Module, batch: ImageBatch) -> Tensor:
    images, labels = batch
    logits, auxiliary_logits = model(images)
    auxiliary_loss = functional.cross_entropy(auxiliary_logits, labels)
    return functional.cross_entropy(logits, labels) + AUXILIARY_WEIGHT * auxiliary_loss


def task() -> Task:
    return Task(
        name="inception_v3",
        model=InceptionV3,
        batch=partial(random_images, BATCH_SIZE, 299),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.045, momentum=0.9, weight_decay=4e-5),
        batch_size=BATCH_SIZE,
    )
