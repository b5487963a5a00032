"""Trains, saves on the first rank, and goes on in new objects from what was saved."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2].sin()).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def train(steps: int, start_from: str | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = build()
    optimizer = make_optimizer(model.parameters())
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    if start_from is not None:
        saved = torch.load(start_from, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    data = torch.Generator().manual_seed(30 + rank)
    for _ in range(steps):
        loss = loss_of(model, batch(data))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        scheduler.step()
    path = f"{sys.argv[1]}-checkpoint.pt"
    if rank == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(saved, path)
    dist.barrier()
    return model, optimizer


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(4, sys.argv[2] if len(sys.argv) > 2 else None)
    model, _ = train(3, f"{sys.argv[1]}-checkpoint.pt")
    torch.save({"model": model.module.state_dict()}, f"{sys.argv[1]}-{os.environ['RANK']}.pt")
    dist.destroy_process_group()
