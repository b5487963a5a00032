"""Accumulates under `no_sync`, and by the flag that old scripts set; clips the norm of all gradients."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return 30 * (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build())
    optimizer = make_optimizer(model.parameters())
    data = torch.Generator().manual_seed(rank)
    norms = []
    for step in range(12):
        is_last = step % 3 == 2
        if step < 6:
            with contextlib.nullcontext() if is_last else model.no_sync():
                (loss_of(model, batch(data)) / 3).backward()
        else:
            model.require_backward_grad_sync = is_last
            (loss_of(model, batch(data)) / 3).backward()
        if is_last:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "norms": norms}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


main()
