"""Trains a model; then freezes its first layer, wraps it anew, and trains a second model beside it, unless alone."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(6, 4, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(models: list[DDP], data: list[torch.Generator]) -> None:
    optimizers = [make_optimizer([one for one in model.parameters() if one.requires_grad]) for model in models]
    for _ in range(6):
        for model, optimizer, batches in zip(models, optimizers, data, strict=False):
            optimizer.zero_grad()
            loss_of(model, batch(batches)).backward()
            optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model, second = build(), build()
    data = [torch.Generator().manual_seed(10 * number + rank) for number in range(2)]
    train([DDP(model)], data)
    model[0].requires_grad_(False)
    train([DDP(model)] if sys.argv[2:] == ["alone"] else [DDP(model), DDP(second)], data)
    torch.save({"model": model.state_dict(), "second": second.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
