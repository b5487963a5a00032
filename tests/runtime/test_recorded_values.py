"""Stages repeat a recorded pass, so Python values of the model that have changed since are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.runtime.stages.recorded_values import RecordedValues


class Scaled(nn.Module):
    """A layer whose scale is a number, and which drops some of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout(0.1)
        self.limit = float("nan")
        self.beta = 0.5
        self.shape = (2, (None, "same"))
        self.table = torch.ones(2)


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a number": (lambda model: setattr(model[0], "beta", 0.25), "beta of module 0 is 0.25, and was 0.5 in"),
    "a part of a tuple": (lambda model: setattr(model[0], "shape", (2, (None, "valid"))), "shape of module 0 is (2, "),
    "evaluation": (lambda model: model.eval(), "training of the model is False, and was True in the first step"),
    "dropout": (lambda model: setattr(model[0].dropout, "p", 0.2), "p of module 0.dropout is 0.2, and was 0.1 in"),
    "a new value": (lambda model: setattr(model, "gain", 2), "gain of the model is 2, and was not there in"),
    "no value": (lambda model: delattr(model[0], "beta"), "beta of module 0 is not there, and was 0.5 in"),
    "a hook": (
        lambda model: model[0].layer.register_forward_hook(lambda *_: None),
        "number of forward hooks of module 0.layer is 1, and was 0 in",
    ),
    "a hook before": (
        lambda model: model[0].layer.register_forward_pre_hook(lambda *_: None),
        "number of forward pre hooks of module 0.layer is 1, and was 0 in",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_value_is_refused_by_name(change: str) -> None:
    made, words = CHANGES[change]
    model = nn.Sequential(Scaled())
    values = RecordedValues(model)
    values.refuse_changes()
    made(model)
    with pytest.raises(OperationError) as refused:
        values.refuse_changes()
    assert str(refused.value).startswith(words)


def test_tensors_and_values_that_are_as_before_are_not_refused() -> None:
    model = nn.Sequential(Scaled())
    values = RecordedValues(model)
    model.eval()
    model[0].table = torch.zeros(3)
    model[0].layer.weight.data.zero_()
    model.train()
    values.refuse_changes()
