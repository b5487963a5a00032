"""accelerate: accumulation, clipping, a schedule and a saved state."""

import sys

import torch
from accelerate import Accelerator
from torch import nn


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = build()
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    inputs = torch.randn(32, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(3):
        for (given,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, given))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    accelerator.save_state(f"{sys.argv[1]}-state")
    torch.save({"model": accelerator.unwrap_model(model).state_dict()}, f"{sys.argv[1]}-{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
