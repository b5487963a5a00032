"""One task that goes wrong in the ways that tasks do, on the ranks of which a file says so.

The file `fault` is read at each step: how rank 1 goes wrong, and behind a comma rank 2.
"""

import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from autosync import Task

_CALLS = itertools.count()


def _go_wrong(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("no such luck")
        case "shout":
            sys.stdout.write("x" * 1_000_000)
            sys.stdout.flush()
        case "exit":
            raise SystemExit(3)
        case "hang":
            time.sleep(600)
        case "slow":
            time.sleep(1.2)
        case "slow then hang":
            time.sleep(1.2 if next(_CALLS) < 2 else 600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "abort":
            os.abort()
        case "leave":
            os._exit(0)
        case "out of memory":
            resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.RLIM_INFINITY))
            torch.empty(2**30)


def task() -> Task:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        fault = Path(os.environ.get("FAULT_FILE", "/nowhere"))
        if fault.exists():
            ways = ["", *fault.read_text().split(",")]
            rank = int(os.environ.get("RANK", "0"))
            _go_wrong(ways[rank] if rank < len(ways) else "")
        return model(x).square().mean()

    return Task(
        name="tiny",
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)),
        batch=lambda generator: torch.randn(2, 4, generator=generator),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


class Measures:
    """Examples that take a while to make."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.full((4,), number / 64)


def with_dataset() -> Task:
    """A batch takes a worker 20 ms."""
    return Task(
        name="with-dataset",
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)),
        dataset=Measures,
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=2,
    )


def large() -> Task:
    """8 MB of parameters: whoever does not give them back is found out."""
    return Task(
        name="large",
        model=lambda: nn.Sequential(nn.Linear(1000, 2000), nn.Linear(2000, 1)),
        batch=lambda generator: torch.randn(2, 1000, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )


def leaves_out() -> Task:
    """A parameter that is never used."""

    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 1)
            self.idle = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.used(x)
            return y

    return Task(
        name="leaves-out",
        model=Partial,
        batch=lambda generator: torch.randn(2, 4, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
