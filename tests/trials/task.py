"""Tasks that go wrong in the ways that tasks do, on rank 1 alone."""

import os
import signal
import time

import torch
from torch import nn

from autosync import Task


def _task(on_rank_1: str) -> Task:
    count = [0]

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        if os.environ.get("RANK") == "1" and count[0] == 3:
            match on_rank_1:
                case "raise":
                    raise ValueError("no such luck")
                case "exit":
                    raise SystemExit(3)
                case "hang":
                    time.sleep(600)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "leave":
                    os._exit(0)
        return model(x).square().mean()

    return Task(
        name=f"tiny-{on_rank_1}",
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)),
        batch=lambda generator: torch.randn(2, 4, generator=generator),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def fine() -> Task:
    return _task("nothing")


def raises() -> Task:
    return _task("raise")


def leaves_python() -> Task:
    return _task("exit")


def hangs() -> Task:
    return _task("hang")


def is_killed() -> Task:
    return _task("kill")


def vanishes() -> Task:
    return _task("leave")


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
