"""The models as tasks."""

import sys
from pathlib import Path

import torch

from autosync import Task

sys.path.insert(0, str(Path(__file__).parent))
from emit_models import MODELS, draw, loss


def _task(name: str) -> Task:
    return Task(
        name=name,
        model=MODELS[name],
        batch=draw,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=4,
    )


def residual() -> Task:
    return _task("residual")


def mixed() -> Task:
    return _task("mixed")


def idle() -> Task:
    return _task("idle")
