"""Optimizers of a script: where the engine updates, one that may use closures in its own way is refused in its step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import OperationError
from autosync.script.optimizers import refuse_where_engine_updates


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def _asked_within(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    def closure() -> float:
        refuse_where_engine_updates(model, [optimizer])
        return 0.0

    step: Callable[..., Any] = optimizer.step
    step(closure)


def test_training_may_begin_within_a_closure_of_torchs_own_steps() -> None:
    model = nn.Linear(1, 1)
    _asked_within(torch.optim.AdamW(model.parameters()), model)


def test_within_other_steps_it_is_refused() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(OperationError, match=r"this Linear comes within a step of Own, and under this bundle"):
        _asked_within(Own(model.parameters()), model)
