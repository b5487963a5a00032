"""A training as users write it, which finds its bundle by itself, with ways to make it fail."""

# ruff: noqa: T201 - a script reports by printing

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import autosync
from autosync.specs.task import Task


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))


def make_optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # type: ignore[arg-type]


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    return inputs, inputs[:, :4].sin()


def loss_of(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = given
    return nn.functional.mse_loss(model(inputs), targets)


def task() -> Task:
    return Task(
        model=make_model,
        batch=lambda generator: batch(int(torch.randint(1000, (), generator=generator)), 0),
        loss=loss_of,
        optimizer=make_optimizer,
    )


def train(num_steps: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    autosync.parallelize(model, optimizer)
    for step in range(num_steps):
        loss = loss_of(model, batch(step, rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: {float(mean) / dist.get_world_size():.9f}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rank", type=int, default=-1, help="who goes wrong")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--wait", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank == chosen.rank and chosen.exit:
        sys.exit(chosen.exit)
    if chosen.wait:
        signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), os._exit(3)))
        print(f"waits as process {os.getpid()}")
        time.sleep(600)
    train(chosen.steps)


if __name__ == "__main__":
    main()
