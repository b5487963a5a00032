"""A mixture of eight experts (Jacobs et al., 1991) between two linear layers, on random features: 2,124,562 parameters.

The gate weighs all experts for every example, so each expert has a gradient in each step. The experts are independent,
so only the code decides their order. To tune it:

    autosync tune examples/zoo/moe.py --cluster configs/clusters/local-2.yaml
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_FEATURES = 64
WIDTH = 256
HIDDEN = 512
NUM_EXPERTS = 8
NUM_CLASSES = 10

BATCH_SIZE = 2048

Batch = tuple[Tensor, Tensor]


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(NUM_EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(dim=1).unsqueeze(1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=2)
        return x + (outputs * weights).sum(dim=2)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH), Mixture(), nn.Linear(WIDTH, NUM_CLASSES))


def batch(generator: torch.Generator) -> Batch:
    device = generator.device
    features = torch.randn(BATCH_SIZE, NUM_FEATURES, generator=generator, device=device)
    return features, torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator, device=device)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    features, classes = batch
    return functional.cross_entropy(model(features), classes)


def task() -> Task:
    return Task(
        name="moe",
        model=network,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        batch_size=BATCH_SIZE,
    )
