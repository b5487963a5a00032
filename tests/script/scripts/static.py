"""Trains by a static graph in two phases, for each of which the model is wrapped anew.

Where five ways take turns of a step, the second phase does not begin with the first way, stock DDP.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = build()
    data = torch.Generator().manual_seed(rank)
    for num_steps in (6, 7):
        wrapped = DDP(model, static_graph=True)
        optimizer = make_optimizer(wrapped.parameters())
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss_of(wrapped, batch(data)).backward()
            optimizer.step()
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
