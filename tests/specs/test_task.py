"""A Task checks its fields when it is made: whoever mistypes one hears of it before anything runs."""

from typing import Any

import pytest
import torch
from torch import nn

from autosync import Task
from autosync.errors import TaskError

GOOD: dict[str, Any] = {
    "model": lambda: nn.Linear(2, 1),
    "batch": lambda generator: torch.rand(3, 2, generator=generator),
    "loss": lambda model, batch: model(batch).mean(),
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


def test_a_task_needs_four_functions_and_no_more() -> None:
    task = Task(**GOOD)
    assert (task.batch_size, task.accumulation_steps, task.clip_norm, task.loss_scaling) == (1, 1, None, False)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "model",
            nn.Linear(2, 1),
            "model: is of type Linear (model is a function: () -> Module); write model=lambda: …",
        ),
        ("batch", 4, "batch: is 4 (batch is a function: (generator) -> batch); write batch=lambda generator: …"),
        (
            "loss",
            None,
            "loss: is None (loss is a function: (model, batch) -> Tensor); write loss=lambda model, batch: …",
        ),
        (
            "optimizer",
            [],
            (
                "optimizer: is of type list (optimizer is a function: (parameters) -> Optimizer); "
                "write optimizer=lambda parameters: …"
            ),
        ),
        ("batch_size", 0, "batch_size: is 0 (a whole number of 1 or more)"),
        ("batch_size", True, "batch_size: is True (a whole number of 1 or more)"),
        ("accumulation_steps", 2.0, "accumulation_steps: is 2.0 (a whole number of 1 or more)"),
        ("clip_norm", 0, "clip_norm: is 0 (a finite number above 0, or None)"),
        ("clip_norm", float("nan"), "clip_norm: is nan (a finite number above 0, or None)"),
        ("loss_scaling", 1, "loss_scaling: is 1 (True or False)"),
        ("name", 3, "name: is 3 (a string)"),
    ],
)
def test_a_wrong_field_is_named_with_what_would_be_right(field: str, value: Any, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        Task(**GOOD | {field: value})
    assert str(caught.value) == message


def test_all_wrong_fields_are_told_at_once() -> None:
    with pytest.raises(TaskError) as caught:
        Task(**GOOD | {"batch_size": "32", "clip_norm": -1.0})
    assert [problem.path for problem in caught.value.problems] == [("batch_size",), ("clip_norm",)]
