"""Marks of what no rank trains: equal for equal values, and others after a change, however it is made."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.runtime.stages.untrained_values import UntrainedValues, refuse_different_values


class _Mixed(nn.Module):
    """Frozen parameters and buffers of several types and layouts, and one parameter that is trained."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.trained = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.randn(40, 50, generator=generator), requires_grad=False)
        self.short = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("turned", torch.randn(6, 7, generator=generator).t())
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("spectrum", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("sparse", torch.eye(2).to_sparse())


def _watched(model: nn.Module, trained: nn.Parameter) -> UntrainedValues:
    return UntrainedValues([*model.parameters(), *model.buffers()], [trained])


CHANGES: dict[str, Callable[[_Mixed], object]] = {
    "in place": lambda model: model.frozen.add_(1),
    "of data": lambda model: setattr(model.frozen, "data", model.frozen.data * 0.5),
    "in place of data": lambda model: model.frozen.data.mul_(0.5),
    "of a short type": lambda model: model.short.data.mul_(2),
    "of a turned tensor": lambda model: model.turned.data.add_(1),
    "of a number": lambda model: model.count.add_(1),
    "of a mask": lambda model: model.mask.logical_not_(),
    "of complex numbers": lambda model: model.spectrum.mul_(1j),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_gives_another_mark(change: Callable[[_Mixed], object]) -> None:
    models = [_Mixed(), _Mixed()]
    watched = [_watched(model, model.trained) for model in models]
    assert watched[0].mark() == watched[1].mark()
    models[0].trained.data.mul_(2)
    assert watched[0].mark() == watched[1].mark()
    change(models[0])
    assert watched[0].mark() != watched[1].mark()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_same_change_on_all_ranks_gives_equal_marks(change: Callable[[_Mixed], object]) -> None:
    models = [_Mixed(), _Mixed()]
    watched = [_watched(model, model.trained) for model in models]
    for model in models:
        change(model)
    assert watched[0].mark() == watched[1].mark()


def test_marks_that_differ_are_refused() -> None:
    refuse_different_values(5, 15.0, 3)
    with pytest.raises(OperationError, match="differs from rank to rank"):
        refuse_different_values(5, 16.0, 3)
    model = nn.Linear(2, 2)
    assert UntrainedValues(model.parameters(), list(model.parameters())).mark() == 0
