"""A model that is compiled around DDP, with a schedule."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()


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
    is_inside = sys.argv[2:] == ["inside"]
    model = build()
    if is_inside:
        model = torch.compile(model, backend="aot_eager")
    model = DDP(model)
    if not is_inside:
        model = torch.compile(model, backend="aot_eager")
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    data = torch.Generator().manual_seed(rank)
    for _ in range(5):
        loss = loss_of(model, batch(data))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    torch.save({"model": model.state_dict()}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
