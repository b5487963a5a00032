"""One model in training under one plan: its engine, and the hooks that tell the engine what happens.

If every worker updates everything by itself after backward has returned, gradients belong to the user from then on:
they are the same on all ranks, and can be clipped, skipped or added to as under DDP. Variables that the engine updates
(at a server, in shards, and all of them when transfers overlap the next forward pass) belong to the engine from their
gradient to their update. Meanwhile users cannot see their gradients: these are sealed, and refuse every use except
those that the task declares for all gradients (see `sealed_gradients`, `seals` and `clipping_and_scaling`). The seals
stay from the step until `zero_grad`, like gradients under DDP, to which the next backward pass would add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.checkpoints.loading import Loading, put_in_place
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.engine.trace import ComputeSpan
from autosync.runtime.local.joint_optimizer import members_of
from autosync.runtime.serving.first_worker import Servers
from autosync.runtime.session.agreement import parameters_of, refuse_gradient, unsynchronised
from autosync.runtime.session.backward import BackwardSync
from autosync.runtime.session.batch_weight import BatchWeight
from autosync.runtime.session.description import described
from autosync.runtime.session.engine_step import EngineStep
from autosync.runtime.session.gradients import Gradients
from autosync.runtime.session.hooks import Hook, takes_hooks, when_loaded
from autosync.runtime.session.model_buffers import Buffers
from autosync.runtime.session.step_calls import StepCalls
from autosync.runtime.session.training import Training
from autosync.runtime.session.unchanged_training import Expected
from autosync.runtime.session.variable_roles import VariableRoles
from autosync.runtime.varying.may_stay import MayStay
from autosync.runtime.varying.varying_use import VaryingUse
from autosync.strategy.bundle import Bundle


class Session:
    """The engine of one model, with its hooks.

    `BackwardSync` follows the script's backward passes and `StepCalls` its optimizers' steps. Both report to
    `EngineStep`, which makes the engine's steps. With `may_stay`, gradients of these variables travel only in steps
    that use them. With `makes_zeros`, a gradient that a function leaves out is zeros.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        *,
        plan: Plan,
        execution: Execution,
        engine: Engine,
        buffers: Buffers | None = None,
        compute: ComputeSpan | None = None,
        servers: Servers | None = None,
        batch_size: int | None = None,
        may_stay: MayStay | None = None,
        makes_zeros: bool = True,
    ) -> None:
        self.training = Training(
            model=model,
            optimizer=optimizer,
            bundle=bundle,
            plan=plan,
            links=execution.links,
            execution=execution,
            servers=servers,
        )
        self._plan = plan
        self._execution = execution
        self._engine = engine
        self._buffers = buffers
        self._compute = compute
        self._variables = VariableRoles.of(plan, parameters_of(model, bundle), execution)
        trains_apart = any(message.synchroniser.trains_apart for message in bundle.strategy.messages)
        self._weight = BatchWeight(plan, execution.links, batch_size=batch_size, trains_apart=trains_apart)
        unchanged = Expected(model, optimizer, bundle, are_engines=bool(self._variables.engine))
        self._step = EngineStep(
            model,
            optimizer,
            bundle,
            plan=plan,
            variables=self._variables,
            execution=execution,
            engine=engine,
            servers=servers,
        )
        gradients = Gradients(self._variables, execution, engine, self._weight)
        self._use = None if may_stay is None else self._begin_use(may_stay, gradients)
        self._backward = BackwardSync(
            self._variables,
            gradients,
            self._step,
            engine,
            execution,
            unchanged=unchanged,
            compute=compute,
            use=self._use,
            makes_zeros=makes_zeros,
        )
        self._calls = StepCalls(members_of(optimizer), self._variables, self._backward, self._step, unchanged=unchanged)
        self._hooks = self._make_hooks()
        engine.begin()

    def _begin_use(self, may_stay: MayStay, gradients: Gradients) -> VaryingUse:
        return VaryingUse(
            may_stay,
            self.training.model,
            self._variables.parameters,
            num_workers=self._plan.num_workers,
            engine=self._engine,
            execution=self._execution,
            gradients=gradients,
        )

    def _make_hooks(self) -> list[Any]:
        model, bundle = self.training.model, self.training.bundle
        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(refuse_gradient(name))  # type: ignore[no-untyped-call]
            for name, parameter in unsynchronised(model, bundle).items()
        ]
        hooks.append(self._calls)
        hooks += when_loaded(model, self._variables.parameters, self._step.reloaded.add)
        if takes_hooks(model):
            hooks.append(model.register_forward_hook(Hook(self._backward.forward_ended)))
        if self._buffers is not None:
            self._buffers.begin(lambda: self._backward.syncs)
        return hooks

    @property
    def syncs(self) -> bool:
        """Whether gradients are synchronised; false while they only accumulate."""
        return self._backward.syncs

    @syncs.setter
    def syncs(self, value: bool) -> None:
        self._backward.syncs = value

    def prepare(self) -> None:
        """Synchronise the next backward pass, as after a forward pass with `syncs`."""
        self._backward.prepare_pass()

    @property
    def kept_apart(self) -> frozenset[str]:
        """The variables whose optimizer state is complete on no worker."""
        return self._step.kept_apart

    @property
    def updates(self) -> bool:
        """Whether the engine updates variables."""
        return bool(self._variables.engine)

    @property
    def step(self) -> int:
        """The number of synchronised steps, by which ranks agree, including those before a checkpoint."""
        return self._engine.iteration

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps made, including those before a checkpoint that was loaded."""
        return self._calls.num_steps

    def weigh(self, weight: float) -> None:
        """Weigh this rank's gradients of the next step by its weight among those of all workers."""
        self._weight.measure(weight)

    def closure_has_run(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the step of an optimizer whose closure has returned, if the session was made within the closure."""
        self._calls.closure_has_run(optimizer)

    def drain(self) -> None:
        """Wait for all updates under way."""
        self._step.drain()

    def settle(self, what: str) -> None:
        """Finish everything under way, between two steps; refuse the call `what` while gradients are on their way."""
        if not self._backward.are_coming:
            self._step.refuse_unfinished()
        if self._backward.are_coming or (self._step.is_synchronised and not self._step.ends_with_backward):
            raise OperationError(f"{what} between backward and optimizer.step(): gradients are on their way")
        self.drain()
        self._step.follow_reloaded()
        self._step.guard.settle()

    def go_on_from(self, loading: Loading) -> None:
        """Install the state that was read from a checkpoint. No operation may be under way."""
        self._execution.forget_iterations()
        put_in_place(self.training, loading)
        self._calls.num_steps = loading.num_steps
        self._step.restart()
        self._engine.restart(loading.step)
        self._engine.begin()

    def bring_home(self, entries: Mapping[str, dict[str, Any]], *, alone: bool) -> None:
        """Give the user's optimizer the state of variables in `kept_apart`; it has all state until the next step."""
        self._step.guard.bring_home(entries, alone=alone)

    # The end.

    def close(self, *, patience_seconds: float | None = None) -> None:
        """Finish the updates under way, then remove the hooks and end the engine.

        With `patience_seconds`, no wait for another rank is longer than that.
        """
        if patience_seconds is not None:
            self._engine.wait_no_longer_than(patience_seconds)
        sealed = self._take_hooks_away()
        try:
            if not self._engine.has_failed:
                self.drain()
                if patience_seconds is None:
                    self._step.seals.leave_zeros(sealed)
        except OperationError:
            # Threads that wait for a missing rank would never end.
            self._execution.links.abort()
            raise
        finally:
            self._end(patience_seconds)

    def leave_to_parent(self) -> None:
        """In a forked process, which has none of the engine's threads, make its copy of the model an ordinary one."""
        self._take_hooks_away()
        if self._use is not None:
            self._use.remove_hooks()
        self._execution.factors.close()
        if self._step.pending is not None:
            self._step.pending.close()

    def _take_hooks_away(self) -> list[str]:
        """Remove the hooks and the sealed gradients; return the variables that had one."""
        if self._buffers is not None:
            self._buffers.close()
        self._backward.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        return self._step.seals.clear()

    def _end(self, patience_seconds: float | None) -> None:
        try:
            if self._use is not None:
                self._use.close(patience_seconds=patience_seconds)
            self._engine.close()
            if self._step.pending is not None:
                self._step.pending.close()
            self._step.guard.close()
        finally:
            self._execution.close()
            if self._compute is not None:
                self._compute.close()

    # In words.

    def where(self) -> str:
        """Return the operations under way in words."""
        return self._engine.where()

    def describe(self) -> str:
        """Describe the engine, the plan that it carries out, and the variables that it updates."""
        names = list(self._variables.engine)
        updates = "the user's optimizer updates everything"
        if names:
            whose = (
                "everything"
                if len(names) == len(self._variables.parameters)
                else f"{names[0]} and {len(names) - 1} more"
            )
            updates = f"the engine updates {whose}"
        notes = [updates]
        if self._use is not None:
            notes.append(f"{self._use.num_variables} variables travel only in steps that use them")
        return described(self._plan, "autosync's engine", notes, self._buffers)

    def __repr__(self) -> str:
        return self.describe()
