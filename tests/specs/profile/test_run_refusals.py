"""Tasks and options that cannot be profiled are refused with the reason."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosync.errors import InputError, TaskError
from autosync.specs.profile.run import profile
from tests.helpers.profile_tasks import task


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "0 steps measure nothing"),
        ({"device": "cpux"}, "'cpux' is no device"),
        ({"device": "meta"}, "'meta' cannot be measured"),
        ({"times": "computed", "rate": "T5"}, "unknown device 'T5'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile(task(lambda: nn.Linear(8, 2)), **options)


def test_types_and_names_that_no_plan_can_hold() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight).abs()

    with pytest.raises(TaskError, match="weight is of type complex64"):
        profile(task(Complex), steps=1)


def test_values_asked_for_where_there_are_none() -> None:
    class Asking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(x.sum())

    with pytest.raises(TaskError, match="computed times run the model on tensors without values"):
        profile(task(lambda: Asking(8, 2)), times="computed", steps=1)
    assert profile(task(lambda: Asking(8, 2)), steps=1).num_parameters == 18
