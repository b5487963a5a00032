"""Passes gradients from backward to the engine, and finished gradients back to the user."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from autosync.errors import OperationError
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.memory.unused_variables import is_absent
from autosync.runtime.session.batch_weight import BatchWeight
from autosync.runtime.session.variable_roles import VariableRoles


class Gradients:
    """Gives a model's gradients to the engine, and finished ones back if the user's optimizer updates."""

    def __init__(self, variables: VariableRoles, execution: Execution, engine: Engine, weight: BatchWeight) -> None:
        self._variables = variables
        self._parameters = variables.parameters
        self._engine_updates = variables.engine
        self._numbers = {name: number for number, name in enumerate(variables.parameters)}
        self._execution = execution
        self._engine = engine
        self._weight = weight
        # Gradients that the engine has last given to the user, and gradients that the script has put in their places.
        self._seen: dict[str, torch.Tensor] = {}
        self._foreign: dict[str, torch.Tensor] = {}
        # The variables of the engine that have a gradient on this rank, under stock DDP, until the script drops it.
        self._kept: set[str] = set()
        # The variables that this rank has not used in the pass under way, or in the last one.
        self._unused: list[str] = []
        # The variables whose gradients stay as they are in this pass.
        self._staying: frozenset[str] | set[str] = frozenset()

    def note_foreign(self) -> None:
        """When a backward pass begins, note the gradients for which the script has its own tensors."""
        self._foreign = {
            name: gradient
            for name in self._variables.dense
            if (gradient := self._parameters[name].grad) is not None and gradient is not self._seen.get(name)
        }

    def begin(self, zeroed: Collection[str]) -> list[str]:
        """Begin a synchronised pass with gradients of zeros for what the script has set to zero; return these names.

        Under stock DDP such a gradient is still there, so momentum and decay move its parameter even if no rank uses
        it. The ranks that had a gradient of the variable contribute zeros; the other ranks need not know.
        """
        if not zeroed:
            self._kept.clear()
            return []
        given = []
        for name in self._engine_updates:
            parameter = self._parameters[name]
            if name in self._variables.sparse or parameter.grad is not None:
                continue
            if name in zeroed and name in self._kept:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
                given.append(name)
            else:
                self._kept.discard(name)
        return given

    def take(self, name: str) -> None:
        """Give a variable's complete gradient to the engine, which may send it."""
        parameter = self._parameters[name]
        gradient = parameter.grad
        if gradient is None:
            raise OperationError(
                f"a hook of the script has dropped the gradient of {name} within the backward pass, as an optimizer "
                "does that steps there: it would update with the gradient of this rank alone (step after backward)"
            )
        factor = self._weight.factor
        seen = self._execution.take_gradient(name, gradient, self._engine.iteration, factor=factor)
        if name in self._engine_updates:
            self._kept.add(name)
        elif seen is not gradient:
            parameter.grad = self._seen[name] = seen
        self._engine.gradient_ready(self._numbers[name])

    def take_missing(self, names: Iterable[str]) -> None:
        """Handle the variables for which a backward pass has brought no gradients."""
        for name in names:
            parameter = self._parameters[name]
            if parameter.grad is not None:
                # The gradient came in earlier microsteps only.
                self.take(name)
                continue
            seen = self._execution.take_nothing(name, self._engine.iteration)
            if name not in self._engine_updates:
                parameter.grad = seen
            self._unused.append(name)
            self._engine.gradient_ready(self._numbers[name])
        self._weight.step_ends()

    def put_nothing(self, name: str, seen: torch.Tensor) -> None:
        """Handle a variable for which this rank has contributed nothing already; `seen` is where its gradient comes."""
        self._parameters[name].grad = seen
        self._unused.append(name)

    def leave(self, names: set[str]) -> None:
        """Leave the gradients of some variables as they are in this pass, because they do not travel."""
        self._staying = names

    def give_back(self) -> None:
        """Give the user the gradients that are finished, for variables that the user's optimizer updates."""
        self._copy_back()
        for name in self._variables.dense:
            if (name in self._foreign or not self._parameters[name].is_contiguous()) and name not in self._staying:
                self._give_in_place(name)
        for name in self._unused:
            if name not in self._engine_updates and name not in self._variables.sparse:
                gradient = self._parameters[name].grad
                if gradient is not None and is_absent(gradient.flatten()):
                    # No rank has used the variable, so its optimizer leaves it alone.
                    self._parameters[name].grad = None
        self._unused.clear()

    def _give_in_place(self, name: str) -> None:
        """Give a finished gradient in the script's own tensor for it, or in the layout of its parameter."""
        parameter, gradient = self._parameters[name], self._parameters[name].grad
        if gradient is None:
            return
        if name in self._foreign:
            if gradient is not self._foreign[name]:
                # The script has its own tensor for this gradient, in a buffer for example.
                parameter.grad = self._foreign[name].copy_(gradient)
        elif gradient.stride() != parameter.stride():
            # The gradient gets the parameter's layout (channels_last, for example), as under DDP.
            parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(gradient)

    def _copy_back(self) -> None:
        """Copy staged gradients back from their buffers, and set those that travelled as rows."""
        finished: dict[str, torch.Tensor] = {}
        for name in self._variables.staged:
            if name in self._staying:
                continue
            gradient = self._parameters[name].grad
            assert gradient is not None, "every variable has got one"
            finished[name] = gradient
        self._execution.memory.return_gradients(finished)
        for name in self._variables.sparse:
            self._parameters[name].grad = self._execution.sparse.give_back(name, self._engine.iteration)
