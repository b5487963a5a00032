"""The tasks of `bytes_on_the_wire.py`: one model with dense gradients, whose layers have factors, and one with rows.

Both are large compared with the cost of messages, and cheap to compute, because only bytes are counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

WIDTH, NUM_LAYERS, NUM_EXAMPLES = 640, 10, 64
NUM_SHIFTS = 1200
NUM_USERS, NUM_ITEMS, NUM_FEATURES, NUM_PAIRS = 40_000, 20_000, 32, 4096


class Layers(nn.Module):
    """Wide linear layers, 16 MB in all, and 3 MB that have no factors."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.Parameter(torch.zeros(NUM_SHIFTS, WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))

    def forward(self, numbers: Tensor) -> Tensor:
        for layer in self.layers:
            numbers = functional.relu(layer(numbers))
        return numbers + self.shifts.mean(0)


class Ratings(nn.Module):
    """Two tables with sparse gradients, 8 MB in all, and dense layers of 2 MB over both."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, NUM_FEATURES, sparse=True)
        self.items = nn.Embedding(NUM_ITEMS, NUM_FEATURES, sparse=True)
        self.first = nn.Linear(2 * NUM_FEATURES, 700)
        self.second = nn.Linear(700, 700)
        self.score = nn.Linear(700, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = pairs.unbind(1)
        both = torch.cat((self.users(users), self.items(items)), dim=1)
        # Averaged pairs are enough work for the dense layers, while all pairs touch rows.
        rows = both.view(NUM_EXAMPLES, -1, 2 * NUM_FEATURES).mean(1)
        score: Tensor = self.score(torch.relu(self.second(torch.relu(self.first(rows)))))
        return score


def _pairs(generator: torch.Generator) -> Tensor:
    users = torch.randint(NUM_USERS, (NUM_PAIRS,), generator=generator)
    return torch.stack((users, torch.randint(NUM_ITEMS, (NUM_PAIRS,), generator=generator)), dim=1)


def touched_rows(pairs: Tensor) -> Mapping[str, Tensor]:
    """Return the rows of each table that a batch of ratings touches, sorted."""
    users, items = pairs.unbind(1)
    return {"users.weight": users.unique(), "items.weight": items.unique()}


TASKS: Mapping[str, Task] = {
    "dense": Task(
        name="dense",
        model=Layers,
        batch=lambda generator: torch.randn(NUM_EXAMPLES, WIDTH, generator=generator),
        loss=lambda model, numbers: model(numbers).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=NUM_EXAMPLES,
    ),
    "rows": Task(
        name="rows",
        model=Ratings,
        batch=_pairs,
        loss=lambda model, pairs: model(pairs).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=NUM_PAIRS,
    ),
}
