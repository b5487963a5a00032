"""Neural collaborative filtering (NeuMF; He et al., 2017) at the size of MovieLens-20M.

138,493 users, 26,744 items and MLPerf's layer sizes, a factorisation of width 64 beside a multi-layer
perceptron of 256, 256, 128, 64: 31,832,577 parameters. A step touches few rows of the embeddings, whose
gradients are sparse: plain SGD takes those, Adam does not. To tune it:

    autosync tune examples/zoo/ncf.py --cluster configs/clusters/local-2.yaml
"""

from itertools import pairwise

import torch
from _blocks import zipf_ids
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

NUM_USERS = 138_493
NUM_ITEMS = 26_744
FACTOR_WIDTH = 64
MLP_WIDTHS = (256, 256, 128, 64)
NUM_NEGATIVES = 4

BATCH_SIZE = 4096

Batch = tuple[Tensor, Tensor, Tensor]


class NeuMF(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor_users = nn.Embedding(NUM_USERS, FACTOR_WIDTH, sparse=True)
        self.factor_items = nn.Embedding(NUM_ITEMS, FACTOR_WIDTH, sparse=True)
        self.mlp_users = nn.Embedding(NUM_USERS, MLP_WIDTHS[0] // 2, sparse=True)
        self.mlp_items = nn.Embedding(NUM_ITEMS, MLP_WIDTHS[0] // 2, sparse=True)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(MLP_WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.score = nn.Linear(FACTOR_WIDTH + MLP_WIDTHS[-1], 1)
        for table in (self.factor_users, self.factor_items, self.mlp_users, self.mlp_items):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        factors = self.factor_users(users) * self.factor_items(items)
        hidden = self.mlp(torch.cat((self.mlp_users(users), self.mlp_items(items)), dim=1))
        score: Tensor = self.score(torch.cat((factors, hidden), dim=1))
        return score.squeeze(1)


def batch(generator: torch.Generator) -> Batch:
    """One popular item that the user saw for every four drawn from all that there are."""
    device = generator.device
    users = torch.randint(NUM_USERS, (BATCH_SIZE,), generator=generator, device=device)
    seen = zipf_ids(NUM_ITEMS, (BATCH_SIZE,), generator)
    others = torch.randint(NUM_ITEMS, (BATCH_SIZE,), generator=generator, device=device)
    is_seen = torch.arange(BATCH_SIZE, device=device) % (1 + NUM_NEGATIVES) == 0
    return users, torch.where(is_seen, seen, others), is_seen.float()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    users, items, is_seen = batch
    return functional.binary_cross_entropy_with_logits(model(users, items), is_seen)


def task() -> Task:
    return Task(
        name="ncf",
        model=NeuMF,
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        batch_size=BATCH_SIZE,
    )
