"""The usual script: buffers, an evaluation on all ranks that a schedule follows, a checkpoint by the first rank."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return inputs, inputs[:, :3].argmax(1)


def loss_of(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(given[0]), given[1])


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


def main() -> None:
    dist.init_process_group(backend="gloo", init_method="env://")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = DDP(build())
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    train = torch.Generator().manual_seed(10 + rank)
    held = batch(torch.Generator().manual_seed(20 + rank))
    losses = []
    for _ in range(3):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, batch(train))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            mean = loss_of(model, held)
        losses.append(mean.item())
        dist.all_reduce(mean)
        scheduler.step(mean / dist.get_world_size())
        if rank == 0:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{sys.argv[1]}-checkpoint.pt"
            )
        dist.barrier()
    assert isinstance(model, DDP)
    assert type(model) is DDP
    assert str(model).startswith("DistributedDataParallel(\n  (module): Sequential(")
    torch.save({"model": model.state_dict(), "losses": losses}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
