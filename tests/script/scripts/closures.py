"""As Lightning trains: closures make the passes, and clip; the first of two passes accumulates outside of the step."""

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
    return 30 * (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(build())
    optimizer = make_optimizer(model.parameters())
    data = torch.Generator().manual_seed(rank)
    losses = []

    def closure() -> torch.Tensor:
        if not accumulates:
            optimizer.zero_grad()
        loss = loss_of(model, batch(data)) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    for step in range(12):
        accumulates = step >= 6
        if accumulates:
            optimizer.zero_grad()
            with model.no_sync():
                (loss_of(model, batch(data)) / 2).backward()
        losses.append(optimizer.step(closure).item())
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, f"{sys.argv[1]}-{rank}.pt"
    )
    dist.destroy_process_group()


main()
