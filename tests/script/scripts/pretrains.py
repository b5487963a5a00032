"""Trains an encoder, and then a classifier that has it, each in a wrapper and by an optimizer of its own."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def build_classifier() -> nn.Module:
    return nn.Sequential(build(), nn.Linear(4, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs)[:, :2] - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(wrapped: DDP, data: torch.Generator) -> None:
    optimizer = make_optimizer(wrapped.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(wrapped, batch(data)).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = torch.Generator().manual_seed(rank)
    classifier = build_classifier()
    # The script keeps the first wrapper, although it is of no use any more.
    pretrained = DDP(classifier[0])
    train(pretrained, data)
    train(DDP(classifier), data)
    torch.save({"model": classifier.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
