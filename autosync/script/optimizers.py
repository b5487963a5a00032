"""Records the optimizers of the process, and finds those that hold a model's parameters.

A script may make its optimizers before or after it wraps the model, and it never passes them to DDP. So each optimizer
is recorded when it is made. At the model's first training step, `Optimizers` looks for those that hold its parameters.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.session.optimizer_steps import calls_closures_first, num_under_way


class Optimizers:
    """All optimizers that the script has made, in order. They are held by weak references only."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[torch.optim.Optimizer]] = []
        self.num_made = 0
        """The number of optimizers made so far. When it changes, an earlier search may be out of date."""

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Record a new optimizer."""
        self._made.append(weakref.ref(optimizer))
        self.num_made += 1

    def holding(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
        """Return the optimizers that hold at least one of the parameters."""
        wanted = {id(parameter) for parameter in parameters}
        found = self._holding(wanted)
        if len(found) > 1:
            # An optimizer that the script has dropped may not be collected yet.
            del found
            gc.collect()
            found = self._holding(wanted)
        return found

    def _holding(self, wanted: set[int]) -> list[torch.optim.Optimizer]:
        self._made = [one for one in self._made if one() is not None]
        alive = [optimizer for one in self._made if (optimizer := one()) is not None]
        return [one for one in dict.fromkeys(alive) if any(id(held) in wanted for held in _held(one))]


def _held(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the parameters in an optimizer's groups. An optimizer whose constructor failed has none."""
    groups = vars(optimizer).get("param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def idle_optimizer(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer that is never stepped. It serves scripts that update by hand or make an optimizer later."""
    return torch.optim.SGD(list(parameters), lr=0.0)


def refuse_where_engine_updates(model: torch.nn.Module, found: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse training that begins without an optimizer, or within the step of one that may use its closure otherwise.

    Called if the engine updates.
    """
    kind = type(model).__name__
    if not found:
        raise OperationError(
            f"no optimizer holds parameters of this {kind} at its first forward pass, and under this bundle the engine "
            "updates them (make the optimizer before the first forward pass; strategies in which the user's optimizer "
            "updates, as preset ddp, take one that is made later)"
        )
    for one in found:
        if num_under_way(one) and not calls_closures_first(one):
            raise OperationError(
                f"optimizer.step(closure): the first forward pass of this {kind} comes within a step of "
                f"{type(one).__name__}, and under this bundle the engine updates the parameters, and has to know when "
                "the gradients are there (it knows for the classes of torch.optim other than LBFGS; others run where "
                "the user's optimizer updates, as by preset ddp)"
            )
