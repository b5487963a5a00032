"""Follows calls of `optimizer.step()`: checks each, and notes when all of a model's optimizers have stepped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.session.backward import BackwardSync
from autosync.runtime.session.engine_step import EngineStep
from autosync.runtime.session.optimizer_guard import refuse_local_gradients
from autosync.runtime.session.optimizer_steps import Steps
from autosync.runtime.session.sealed_gradients import is_there
from autosync.runtime.session.unchanged_training import Expected
from autosync.runtime.session.variable_roles import VariableRoles


class StepCalls:
    """Follows the steps of a model's optimizers, and makes the engine's step from them."""

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        variables: VariableRoles,
        backward: BackwardSync,
        step: EngineStep,
        *,
        unchanged: Expected,
    ) -> None:
        self._parameters: Mapping[str, torch.nn.Parameter] = variables.parameters
        self._has_updates = bool(variables.engine)
        self._backward = backward
        self._step = step
        self._unchanged = unchanged
        self.num_steps = 0
        """The steps that the first optimizer has made, including those before a checkpoint that was loaded."""
        members = tuple(optimizers)
        self._counted = members[0]
        # Where the step ends with backward, a closure's passes are steps like others.
        self._hooks = Steps(members, begins=self._before, ends=self._after, awaits_closures=not step.ends_with_backward)

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the step of an optimizer whose closure has returned, if the session was made within the closure."""
        self._hooks.closure_has_run(optimizer)

    def _before(self, stepping: torch.optim.Optimizer, given: tuple[Any, ...]) -> None:
        step = self._step
        self._backward.refuse_step()
        if step.ends_with_backward:
            if not given:
                refuse_local_gradients(are_local=self._backward.are_local)
            self._unchanged.check()
            return
        if given:
            step.guard.refuse_closure(stepping)
        step.seals.refuse_spoilt()
        if not step.is_synchronised:
            self._synchronise_nothing()
        self._unchanged.check()
        if not step.turns.are_under_way:
            step.are_thrown_away = self._has_updates and step.seals.are_gone()
            if step.are_thrown_away:
                step.seals.refuse_zeroed()
        step.turns.take(stepping)
        if not step.are_thrown_away:
            step.seals.remove(step.turns.names(stepping))
        if step.turns.are_over:
            step.call(is_skipped=step.are_thrown_away)
        step.guard.in_step = True

    def _synchronise_nothing(self) -> None:
        """Take part in a step without a backward pass on this rank; other ranks may have had one."""
        if self._backward.are_local or any(is_there(parameter.grad) for parameter in self._parameters.values()):
            raise OperationError("optimizer.step() was called without a synchronised backward pass before it")
        self._backward.synchronise_nothing()

    def _after(self, stepping: torch.optim.Optimizer) -> None:
        step = self._step
        step.guard.in_step = False
        if stepping is self._counted:
            self.num_steps += 1
        if step.ends_with_backward:
            return
        step.seals.put_back(step.turns.names(stepping))
        if step.turns.are_over:
            step.end()
