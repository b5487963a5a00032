"""A small recommender that learns which users like which items, from embeddings of 100,000 rows each.

A batch touches a few hundred rows of each embedding, so their gradients are sparse: sending only those rows is far
cheaper than sending whole gradients. Plain SGD accepts sparse gradients; Adam does not. To tune it:

    autosync tune examples/recommender.py --cluster configs/clusters/local-2.yaml
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_USERS = 100_000
NUM_ITEMS = 100_000
WIDTH = 16
BATCH_SIZE = 1024

Batch = tuple[Tensor, Tensor, Tensor]


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, WIDTH, sparse=True)
        self.score = nn.Sequential(
            nn.Linear(2 * WIDTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        score: Tensor = self.score(torch.cat((self.users(users), self.items(items)), dim=1))
        return score.squeeze(1)


def popular(num_ids: int, generator: torch.Generator) -> Tensor:
    """Return ids drawn with a probability of about 1 / rank, like clicks: a few are popular, most are rare."""
    quantile = torch.rand(BATCH_SIZE, generator=generator, device=generator.device)
    return torch.exp(quantile * math.log(num_ids)).long().clamp(max=num_ids) - 1


def batch(generator: torch.Generator) -> Batch:
    """Return a batch that embeddings can learn: generous users like most items, and most users like good items."""
    users = popular(NUM_USERS, generator)
    items = popular(NUM_ITEMS, generator)
    likes = torch.sin(users * 3.0) + torch.sin(items * 5.0) > 0
    return users, items, likes.float()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    users, items, likes = batch
    return functional.binary_cross_entropy_with_logits(model(users, items), likes)


def task() -> Task:
    return Task(
        name="recommender-example",
        model=Recommender,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        batch_size=BATCH_SIZE,
    )
