"""A vision transformer (Dosovitskiy et al., 2020) for images of CIFAR's size: 4 layers of width 192, as in DeiT-tiny.

It has 1,821,220 parameters: 64 patches of 4 x 4 pixels and a class token, 100 classes. To tune it:

    autosync tune examples/zoo/vit_mini.py --cluster configs/clusters/local-2.yaml
"""

from functools import partial

import torch
from _blocks import EncoderLayer, classification_loss, random_images
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

BATCH_SIZE = 128
SIDE = 32
PATCH = 4
WIDTH = 192
NUM_HEADS = 3
NUM_LAYERS = 4
NUM_CLASSES = 100
DROPOUT = 0.1


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.encoder = nn.Sequential(
            *(
                EncoderLayer(WIDTH, NUM_HEADS, 4 * WIDTH, activation=functional.gelu, dropout=DROPOUT)
                for _ in range(NUM_LAYERS)
            )
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.encoder(x))[:, 0])
        return logits


def task() -> Task:
    return Task(
        name="vit_mini",
        model=VisionTransformer,
        batch=partial(random_images, BATCH_SIZE, SIDE, num_classes=NUM_CLASSES),
        loss=classification_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05),
        batch_size=BATCH_SIZE,
    )
