"""ResNet20 on images of CIFAR's shape (He et al., 2015, section 4.2): 269,722 parameters.

Shortcuts that change the shape have no parameters ("option A"). It has one megabyte of gradients in 59 variables, so
the cost of each message matters more than its bytes. To tune it:

    autosync tune examples/zoo/resnet20.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

BATCH_SIZE = 128
SIDE = 32
NUM_CLASSES = 10
BLOCKS_PER_STAGE = 3
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride = width // channels
        self.conv1 = nn.Conv2d(channels, width, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input. If the shape changes, return every second pixel, with channels of zeros added."""
        if self.stride == 1:
            return x
        missing = x.shape[1] // 2
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, missing, missing))


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels = WIDTHS[0]
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        blocks: list[nn.Module] = []
        for width in WIDTHS:
            for _ in range(BLOCKS_PER_STAGE):
                blocks.append(Block(channels, width))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(images)))
        logits: Tensor = self.fc(self.blocks(x).mean((2, 3)))
        return logits


def task() -> Task:
    return Task(
        name="resnet20",
        model=ResNet20,
        batch=partial(random_images, BATCH_SIZE, SIDE, num_classes=NUM_CLASSES),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
        batch_size=BATCH_SIZE,
    )
