"""Wraps the same model anew for a second phase, with a group and an optimizer of its own; trains a moment by itself."""

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


def phase(model: nn.Module, group, data: torch.Generator, **options) -> list[float]:
    wrapped = DDP(model, process_group=group, **options)
    optimizer = make_optimizer(wrapped.parameters())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(wrapped, batch(data))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # A look at the gradients by the bare model: not synchronised, and thrown away.
    optimizer.zero_grad()
    loss_of(wrapped.module, batch(data)).backward()
    losses.append(sum(one.grad.square().sum().item() for one in wrapped.parameters()))
    optimizer.zero_grad()
    loss_of(wrapped, batch(data)).backward()
    optimizer.step()
    return losses


def main() -> None:
    # A group that is made from this one has the same name for its backend.
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = build()
    data = torch.Generator().manual_seed(rank)
    losses = phase(model, None, data)
    losses += phase(model, dist.new_group([0, 1]), data, init_sync=False)
    torch.save({"model": model.state_dict(), "losses": losses}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
