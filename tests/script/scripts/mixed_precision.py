"""autocast and a `GradScaler` that overflows in the first steps."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(8, 8, generator=generator)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.functional.mse_loss(model(inputs).float(), inputs[:, :4])


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(build())
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)
    data = torch.Generator().manual_seed(rank)
    scales = []
    for _ in range(12):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch(data))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    torch.save({"model": model.state_dict(), "scales": scales}, f"{sys.argv[1]}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
