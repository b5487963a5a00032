"""Trains a task under stock DDP on this rank. It is the doctor's script for a task or a model spec."""

from __future__ import annotations

import datetime as dt
import os

import torch
import torch.distributed as dist

from autosync.doctor.post import MODEL_VARIABLE, TASK_VARIABLE
from autosync.specs.model_file import load_model
from autosync.specs.rank_variables import rank_threads
from autosync.specs.task import Task
from autosync.specs.task_file import load_task
from autosync.strategy.emit.settings import DdpSettings
from autosync.trials.replay import replay_task
from autosync.trials.training import ContestantTraining

_TIMEOUT = dt.timedelta(minutes=5)


def main() -> None:
    """Train until the watch has seen enough and ends this process."""
    torch.set_num_threads(rank_threads())
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    training = ContestantTraining(
        _task(),
        bundle=None,
        ddp=DdpSettings(),
        trace=None,
        seed=0,
        rank=dist.get_rank(),
        timeout_seconds=_TIMEOUT.total_seconds(),
    )
    while True:
        training.step()


def _task() -> Task:
    target = os.environ.get(TASK_VARIABLE)
    return load_task(target) if target else replay_task(load_model(os.environ[MODEL_VARIABLE]))


if __name__ == "__main__":
    main()
