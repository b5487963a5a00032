"""A perceptron that classifies states of speech from 11 frames of 40 filters (Hinton et al., 2012).

It has 2,884,700 parameters in five hidden layers of 640 and 1,500 outputs. A batch has few rows, so the factors of a
layer's gradient are much smaller than the gradient. To tune it:

    autosync tune examples/zoo/acoustic_mlp.py --cluster configs/clusters/local-2.yaml
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

WIDTHS = (11 * 40, 640, 640, 640, 640, 640, 1500)
BATCH_SIZE = 64

Batch = tuple[Tensor, Tensor]


def perceptron() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch(generator: torch.Generator) -> Batch:
    device = generator.device
    frames = torch.randn(BATCH_SIZE, WIDTHS[0], generator=generator, device=device)
    return frames, torch.randint(WIDTHS[-1], (BATCH_SIZE,), generator=generator, device=device)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    frames, states = batch
    return functional.cross_entropy(model(frames), states)


def task() -> Task:
    return Task(
        name="acoustic_mlp",
        model=perceptron,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        batch_size=BATCH_SIZE,
    )
