"""VGG16 on images of ImageNet's shape (configuration D of Simonyan and Zisserman, 2014).

It has 138,357,544 parameters, three quarters of them in one linear layer. To tune it:

    autosync tune examples/zoo/vgg16.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from torch import Tensor, nn

from autosync import Task

BATCH_SIZE = 32
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 1000),
        )

    def forward(self, images: Tensor) -> Tensor:
        features = self.avgpool(self.features(images)).flatten(1)
        logits: Tensor = self.classifier(features)
        return logits


def task() -> Task:
    return Task(
        name="vgg16",
        model=VGG16,
        batch=partial(random_images, BATCH_SIZE, 224),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4),
        batch_size=BATCH_SIZE,
    )
