"""A trainer refuses a task that has changed since its bundle was made, and names the difference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.plan.bundling import bundled
from autosync.runtime.unchanged_task import refuse_changed_task
from autosync.specs.task import Task
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import ModelStage
from autosync.trials.replay import replay_task
from tests.helpers.staged_models import chain, nodes

MODEL = replace(chain(4, batch_size=4), clip_norm=0.5)
STAGES = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
BUNDLE = bundled(divided_strategy(MODEL, STAGES, 4), MODEL, nodes(1, 1))
TASK = Task(
    model=lambda: nn.Linear(2, 2),
    batch=lambda generator: torch.randn(4, 2, generator=generator),
    loss=lambda model, x: model(x).square().mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    batch_size=4,
    clip_norm=0.5,
)


def _refuse(task: Task) -> None:
    refuse_changed_task(task, task.optimizer(task.model().parameters()), BUNDLE)


def test_a_task_as_it_was_is_taken() -> None:
    _refuse(TASK)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 8}, "the task's batch_size is 8; the bundle was made for a task whose batch_size is 4"),
        ({"accumulation_steps": 2}, "accumulation_steps is 2"),
        ({"clip_norm": None}, "the task's clip_norm is None; the bundle was made for a task whose clip_norm is 0.5"),
        ({"clip_norm": 0.25}, "clip_norm is 0.25"),
        ({"loss_scaling": True}, "loss_scaling is True"),
        ({"weight": len}, "weight is given; the bundle was made for a task whose weight is not given"),
        ({"optimizer": torch.optim.AdamW}, "optimizer is AdamW"),
    ],
)
def test_a_difference_is_named_with_both_values(change: dict[str, Any], words: str) -> None:
    with pytest.raises(OperationError) as refused:
        _refuse(replace(TASK, **change))
    assert words in str(refused.value)
    assert "tune the task as it is now" in str(refused.value)


def test_a_replay_stands_for_the_task_of_its_bundle() -> None:
    _refuse(replay_task(MODEL))
