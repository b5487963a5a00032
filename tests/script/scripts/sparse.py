"""A sparse embedding with an optimizer of its own, and a dense one for the rest."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(words).mean(1))


def build() -> nn.Module:
    return Net().double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(20, (6, 3), generator=generator)


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words), words.sum(1) % 3)


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build())
    sparse = make_optimizer(model.module.table.parameters())
    dense = make_optimizer(model.module.head.parameters())
    data = torch.Generator().manual_seed(rank)
    for _ in range(4):
        sparse.zero_grad()
        dense.zero_grad()
        loss_of(model, batch(data)).backward()
        sparse.step()
        dense.step()
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
