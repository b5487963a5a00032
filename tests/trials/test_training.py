"""A contestant that is closed leaves nothing behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autosync.specs.task_file import load_task
from autosync.strategy.emit.settings import DdpSettings
from autosync.trials.training import ContestantTraining


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_model_is_gone_when_torch_gives_back_what_it_keeps_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[nn.Module]] = []

    def model() -> nn.Module:
        made.append(weakref.ref(one := nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))))
        return one

    task = replace(load_task(str(Path(__file__).with_name("task.py"))), model=model)
    training = ContestantTraining(
        task, bundle=None, ddp=DdpSettings(), trace=None, seed=0, rank=0, timeout_seconds=10.0
    )
    training.step()
    left: list[nn.Module | None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.extend(one() for one in made))
    training.close()
    assert left == [None]
