"""Trains a regression network in mixed precision, on all ranks that torchrun starts.

    torchrun --nproc-per-node 2 examples/training/mixed_precision.py --precision bfloat16
    torchrun --nproc-per-node 2 examples/training/mixed_precision.py --precision float16

The script is written as for DistributedDataParallel: the forward pass runs under autocast and, for float16, a
GradScaler skips the steps whose gradients overflow. To train with a strategy, tune one and pass its bundle:

    autosync tune examples/training/mixed_precision.py --cluster configs/clusters/local-2.yaml -o best.yaml
    torchrun --nproc-per-node 2 examples/training/mixed_precision.py --bundle best.yaml

`tune` reads `task()` or, with `mixed_precision.py:task_float16`, the task that says that the loss is scaled. Training
uses neither.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import autosync

NUM_INPUTS = 24
NUM_EXAMPLES = 2048
BATCH_SIZE = 32
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(NUM_INPUTS, 64), Residual(64), Residual(64), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found.squeeze(1)


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random numbers, and a curved function of a few of them with some noise."""
    inputs = torch.randn(count, NUM_INPUTS, generator=generator)
    noise = torch.randn(count, generator=generator)
    return inputs, torch.sin(2 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] + 0.1 * noise


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dataset = TensorDataset(*draw(NUM_EXAMPLES, torch.Generator().manual_seed(args.seed)))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler)

    model: nn.Module = Regression()
    optimizer = make_optimizer(model.parameters())
    if args.bundle:
        model, optimizer = autosync.parallelize(model, optimizer, args.bundle)
    else:
        model = DistributedDataParallel(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", enabled=args.precision == "float16")

    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=PRECISIONS[args.precision]):
                found = model(inputs)
            loss = functional.mse_loss(found.to(targets.dtype), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(mean_over_ranks(loss))
        scheduler.step()
        report(f"epoch {epoch + 1}: loss {losses[-1]:.4f}")
    write_log(args.losses, losses)


def mean_over_ranks(loss: Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def report(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def write_log(path: Path | None, losses: list[float]) -> None:
    if path is not None and dist.get_rank() == 0:
        path.write_text(json.dumps(losses))


def task(precision: str = "bfloat16") -> autosync.Task:
    """Return this training as a task for `autosync tune`."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        with torch.autocast("cpu", dtype=PRECISIONS[precision]):
            found = model(inputs)
        return functional.mse_loss(found.to(targets.dtype), targets)

    return autosync.Task(
        name="mixed-precision",
        model=Regression,
        batch=lambda generator: draw(BATCH_SIZE, generator),
        loss=loss,
        optimizer=make_optimizer,
        batch_size=BATCH_SIZE,
    )


def task_float16() -> autosync.Task:
    """Return the same task with a GradScaler."""
    return dataclasses.replace(task("float16"), name="mixed-precision-float16", loss_scaling=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bfloat16")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bundle", help="train by this strategy; by stock DDP unless given")
    parser.add_argument("--losses", type=Path, help="write the losses of all steps there")
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
