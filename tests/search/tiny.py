"""Tasks of a few milliseconds a step."""

import torch
from torch import nn

from autosync import Task
from autosync.runtime.parallelize import _SESSIONS


def task() -> Task:
    return Task(
        name="tiny",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
        batch=lambda generator: torch.randn(4, 8, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    )


def _with_loss(check: object) -> Task:
    fine = task()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        import os

        check("RANK" in os.environ)  # type: ignore[operator]
        return fine.loss(model, x)

    return Task(name="tiny", model=fine.model, batch=fine.batch, loss=loss, optimizer=fine.optimizer)


def fails_in_trials() -> Task:
    """Profiles well and never trains."""

    def check(is_trial: object) -> None:
        if is_trial:
            raise RuntimeError("out of luck")

    return _with_loss(check)


def fails_where_the_engine_updates() -> Task:
    """Trains under stock DDP and wherever every worker updates; fails on other strategies."""

    def check(is_trial: object) -> None:
        if is_trial and any(session._engine_updated for session in _SESSIONS.values()):
            raise RuntimeError("not like this")

    return _with_loss(check)


def hangs_in_trials() -> Task:
    def check(is_trial: object) -> None:
        if is_trial:
            import time

            time.sleep(600)

    return _with_loss(check)
