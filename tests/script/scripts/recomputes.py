"""Activation checkpoints of both kinds under a static graph, tied weights, averages of weights, a subclass of DDP."""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class DDP(DistributedDataParallel):
    """As libraries have it: attributes of the model are found on the wrapper."""

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.block = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.words.weight

    def num_classes(self) -> int:
        return self.head.out_features

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        hidden = checkpoint(self.block, hidden, use_reentrant=True)
        hidden = checkpoint(self.block, hidden, use_reentrant=True)
        hidden = checkpoint(self.block, hidden, use_reentrant=False)
        return self.head(hidden)


def build() -> nn.Module:
    return Net().double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(12, (4, 5), generator=generator)


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build(), static_graph=True, bucket_cap_mb=1)
    assert model.num_classes() == 12
    average = torch.optim.swa_utils.AveragedModel(model.module)
    optimizer = make_optimizer(model.parameters())
    data = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, batch(data)).backward()
        optimizer.step()
        average.update_parameters(model.module)
    copied = copy.deepcopy(model)
    torch.save(
        {"model": model.state_dict(), "average": average.state_dict(), "copied": copied.state_dict()},
        f"{sys.argv[1]}-{rank}.pt",
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
