"""ResNet101 on images of ImageNet's shape (He et al., 2015).

It has 44,549,160 parameters. To tune it:

    autosync tune examples/zoo/resnet101.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import classification_loss, random_images
from _resnet import Bottleneck, ResNet

from autosync import Task

BATCH_SIZE = 32


def task() -> Task:
    return Task(
        name="resnet101",
        model=lambda: ResNet(Bottleneck, (3, 4, 23, 3)),
        batch=partial(random_images, BATCH_SIZE, 224),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
        batch_size=BATCH_SIZE,
    )
