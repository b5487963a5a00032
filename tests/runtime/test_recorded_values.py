"""Stages repeat a recorded pass, so state of the model that has changed since is refused by name."""

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
        self.register_buffer("mean", torch.zeros(2))


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
    "a tensor": (
        lambda model: setattr(model[0], "table", torch.ones(2)),
        "table of module 0 is another tensor than in the first step",
    ),
    "no tensor": (lambda model: setattr(model[0], "table", None), "table of module 0 is None, and was a tensor in"),
    "a buffer": (
        lambda model: setattr(model[0], "mean", torch.zeros(2)),
        "mean of module 0 is another tensor than in the first step",
    ),
    "a parameter": (
        lambda model: setattr(model[0].layer, "bias", nn.Parameter(torch.zeros(2))),
        "bias of module 0.layer is another tensor than in the first step",
    ),
    "loaded parameters": (
        lambda model: model.load_state_dict(model.state_dict(), assign=True),
        "mean of module 0 is another tensor than in the first step",
    ),
    "a layer": (
        lambda model: setattr(model[0], "layer", nn.Linear(2, 2)),
        "layer of module 0 is another module Linear than in the first step",
    ),
    "no layer": (
        lambda model: setattr(model[0], "dropout", None),
        "dropout of module 0 is None, and was a module Dropout in",
    ),
    "a frozen parameter": (
        lambda model: model[0].layer.weight.requires_grad_(requires_grad=False),
        "requires_grad of weight of module 0.layer is False, and was True in",
    ),
    "a parameter that is trained now": (
        lambda model: model[0].layer.bias.requires_grad_(),
        "requires_grad of bias of module 0.layer is True, and was False in",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_value_is_refused_by_name(change: str) -> None:
    made, words = CHANGES[change]
    model = nn.Sequential(Scaled())
    model[0].layer.bias.requires_grad_(requires_grad=False)
    values = RecordedValues(model)
    values.refuse_changes()
    made(model)
    with pytest.raises(OperationError) as refused:
        values.refuse_changes()
    assert str(refused.value).startswith(words)


def test_values_that_are_as_before_and_numbers_in_tensors_are_not_refused() -> None:
    model = nn.Sequential(Scaled())
    values = RecordedValues(model)
    model.eval()
    model[0].table.mul_(2)
    model[0].mean += 1
    model[0].layer.weight.data.zero_()
    model.load_state_dict(model.state_dict())
    model.train()
    values.refuse_changes()


class Passing(nn.Module):
    """A layer whose forward pass sets what it is told to set."""

    def __init__(self, change: Callable[[Any, torch.Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.change = change
        self.calls = 0
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self, x)
        result: torch.Tensor = self.layer(x)
        return result


OWN_CHANGES: dict[str, tuple[Callable[[Any, torch.Tensor], object], str]] = {
    "a counter": (
        lambda model, _: setattr(model, "calls", model.calls + 1),
        "the forward pass changes calls of module 0, which was 1 and then 2",
    ),
    "a running mean": (
        lambda model, x: setattr(model, "mean", 0.9 * model.mean + 0.1 * x.detach().mean(0)),
        "the forward pass changes mean of module 0, which was a tensor and then another",
    ),
    "what it has computed": (lambda model, x: setattr(model, "seen", x * 2), ""),
    "the form of its batch": (lambda model, x: setattr(model, "size", x.shape), ""),
    "what it lacks": (lambda model, _: setattr(model, "mask", getattr(model, "mask", torch.ones(2))), ""),
}


@pytest.mark.parametrize("change", OWN_CHANGES)
def test_what_the_forward_pass_itself_changes_is_refused_if_it_may_matter(change: str) -> None:
    made, words = OWN_CHANGES[change]
    model = nn.Sequential(Passing(made))
    model(torch.randn(3, 2))
    values = RecordedValues(model)
    model(torch.randn(3, 2))
    if not words:
        values.refuse_own_changes()
        return
    with pytest.raises(OperationError) as refused:
        values.refuse_own_changes()
    assert str(refused.value).startswith(words)


def test_what_passes_keep_may_be_kept_anew_by_an_evaluation() -> None:
    model = nn.Sequential(Passing(lambda model, x: setattr(model, "seen", x * 2)))
    before = RecordedValues(model)
    model(torch.randn(3, 2))
    values = RecordedValues(model, before=before)
    model(torch.randn(5, 2))
    values.refuse_changes()
    model[0].calls = 3
    with pytest.raises(OperationError, match="calls of module 0 is 3, and was 0"):
        values.refuse_changes()
    values.note_again()
    values.refuse_changes()
