"""Wraps a model, trains it with a frozen layer, and then with all layers."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    """Make the model as it is trained at first."""
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model[0].requires_grad_(False)
    return model


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
    model.requires_grad_(True)
    wrapped = DDP(model, find_unused_parameters=True)
    model[0].requires_grad_(False)
    optimizer = make_optimizer(wrapped.parameters())
    data = torch.Generator().manual_seed(rank)
    for step in range(int(sys.argv[2]) if sys.argv[2:] else 8):
        if step == 5:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        loss_of(wrapped, batch(data)).backward()
        optimizer.step()
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
