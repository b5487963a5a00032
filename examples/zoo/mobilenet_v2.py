"""MobileNetV2 on images of ImageNet's shape (Sandler et al., 2018): 3,504,872 parameters.

It has much compute for few bytes, so it is the zoo's easiest model to synchronise. To tune it:

    autosync tune examples/zoo/mobilenet_v2.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from torch import Tensor, nn

from autosync import Task

BATCH_SIZE = 32
# Per row: expansion, channels, number of blocks, stride of the first (table 2 of the paper).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_norm_relu(channels: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += conv_norm_relu(channels, hidden, 1)
        layers += conv_norm_relu(hidden, hidden, 3, stride=stride, groups=hidden)
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.is_residual = stride == 1 and channels == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.is_residual else y


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels = 32
        layers = conv_norm_relu(3, channels, 3, stride=2)
        for expansion, outputs, num_blocks, first_stride in STAGES:
            for index in range(num_blocks):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, outputs, stride=stride, expansion=expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, *conv_norm_relu(channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def task() -> Task:
    return Task(
        name="mobilenet_v2",
        model=MobileNetV2,
        batch=partial(random_images, BATCH_SIZE, 224),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.045, momentum=0.9, weight_decay=4e-5),
        batch_size=BATCH_SIZE,
    )
