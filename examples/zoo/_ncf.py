"""Neural matrix factorisation (NeuMF; He et al., 2017) for any number of users and items.

The model is a factorisation beside a multi-layer perceptron. A step touches few rows of the embeddings, so their
gradients are sparse: plain SGD accepts them, Adam does not.
"""

from itertools import pairwise

import torch
from _blocks import zipf_ids
from torch import Tensor, nn
from torch.nn import functional

NUM_NEGATIVES = 4

Batch = tuple[Tensor, Tensor, Tensor]


class NeuMF(nn.Module):
    def __init__(self, *, num_users: int, num_items: int, factor_width: int, mlp_widths: tuple[int, ...]) -> None:
        super().__init__()
        self.factor_users = nn.Embedding(num_users, factor_width, sparse=True)
        self.factor_items = nn.Embedding(num_items, factor_width, sparse=True)
        self.mlp_users = nn.Embedding(num_users, mlp_widths[0] // 2, sparse=True)
        self.mlp_items = nn.Embedding(num_items, mlp_widths[0] // 2, sparse=True)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(mlp_widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.score = nn.Linear(factor_width + mlp_widths[-1], 1)
        for table in (self.factor_users, self.factor_items, self.mlp_users, self.mlp_items):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        factors = self.factor_users(users) * self.factor_items(items)
        hidden = self.mlp(torch.cat((self.mlp_users(users), self.mlp_items(items)), dim=1))
        score: Tensor = self.score(torch.cat((factors, hidden), dim=1))
        return score.squeeze(1)


def ratings(num_users: int, num_items: int, batch_size: int, generator: torch.Generator) -> Batch:
    """Return a batch with one popular item that the user saw for every four items drawn from all."""
    device = generator.device
    users = torch.randint(num_users, (batch_size,), generator=generator, device=device)
    seen = zipf_ids(num_items, (batch_size,), generator)
    others = torch.randint(num_items, (batch_size,), generator=generator, device=device)
    is_seen = torch.arange(batch_size, device=device) % (1 + NUM_NEGATIVES) == 0
    return users, torch.where(is_seen, seen, others), is_seen.float()


def rating_loss(model: nn.Module, batch: Batch) -> Tensor:
    users, items, is_seen = batch
    return functional.binary_cross_entropy_with_logits(model(users, items), is_seen)
