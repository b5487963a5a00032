"""One model in training under one plan: the hooks that tell the engine what happens, and what it cannot do refused.

Where every worker updates everything for itself after backward has returned, gradients are the users' from there on:
the same on all ranks, to be clipped, skipped or added to as under DDP. Variables that the engine updates (at a server,
in shards, and all of them when transfers overlap the next forward pass) are the engine's from their gradient to their
update. Meanwhile nobody can see their gradients: they are sealed, and refuse to be used but for what the task declares
to be done with all gradients (see `sealed` and `declared`). From the step to `zero_grad` they are there, sealed, for
DDP would add to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.agreement import parameters_of, refuse_gradient, unsynchronised
from autosync.runtime.buffers import Buffers
from autosync.runtime.checkpoints.loading import Loading, put_in_place
from autosync.runtime.checkpoints.natures import variables_kept_apart
from autosync.runtime.checkpoints.workers import Training
from autosync.runtime.declared import Declared
from autosync.runtime.description import described
from autosync.runtime.engine import Engine
from autosync.runtime.execution import Execution
from autosync.runtime.expected import Expected
from autosync.runtime.first_worker import Servers
from autosync.runtime.hooks import drained_by, when_loaded
from autosync.runtime.passes import Passes
from autosync.runtime.sealed import Seals
from autosync.runtime.trace import Compute
from autosync.runtime.updates import engine_updates, follows_users_updates, norm_operations
from autosync.runtime.uses import Uses
from autosync.strategy.bundle import Bundle


class Session:
    """The engine of one model, with its hooks. `syncs` is false while gradients only accumulate."""

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
        compute: Compute | None = None,
        servers: Servers | None = None,
    ) -> None:
        self.syncs = True
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
        self._optimizer = optimizer
        self._execution = execution
        self._engine = engine
        self._buffers = buffers
        self._compute = compute
        self._parameters = parameters_of(model, bundle)
        updates = engine_updates(plan)
        self._numbers = {name: number for number, name in enumerate(self._parameters)}
        self._engines = {name: p for name, p in self._parameters.items() if name in updates.variables}
        self._sparse = [name for name in self._parameters if name in execution.sparse.variables - self._engines.keys()]
        kept = execution.sparse.variables | self._engines.keys()
        self._returned = [name for name in execution.memory.staged_variables() if name not in kept]
        self.kept_apart = variables_kept_apart(plan, updates.operations)
        # Whether the user's optimizer has the whole of its state.
        self._is_home = True
        self._reloaded: set[str] = set()
        self._norms = norm_operations(plan)
        self._declared = Declared(
            optimizer,
            clip_norm=plan.clip_norm,
            scales=bundle.model.loss_scaling,
            sum_of_squares=self._sum_of_squares,
            skip=self._skip_step,
        )
        self._seals = Seals(self._engines, optimizer, self._declared)
        self._expected = Expected(model, optimizer, bundle, are_engines=bool(self._engines))
        self._came: set[str] = set()
        self._has_failed = False
        self._synchronised = False
        self._overlaps_forward = plan.overlap == "forward"
        self._ends_with_backward = not self._engines and not follows_users_updates(plan)
        self._uses = Uses(model, self._parameters, self._before_use) if self._overlaps_forward else None
        self._passes = Passes(model, begins=self._backward_begins, ends=self._backward_ends)
        self._hooks = self._make_hooks(model, optimizer, bundle)
        if buffers is not None:
            buffers.begin(lambda: self.syncs)
        engine.begin()

    def _make_hooks(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, bundle: Bundle) -> list[Any]:
        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
        ]
        hooks += [
            parameter.register_post_accumulate_grad_hook(refuse_gradient(name))  # type: ignore[no-untyped-call]
            for name, parameter in unsynchronised(model, bundle).items()
        ]
        hooks.append(optimizer.register_step_pre_hook(self._before_step))
        hooks.append(optimizer.register_step_post_hook(self._after_step))
        hooks.append(optimizer.register_state_dict_pre_hook(self._before_optimizer_state))
        hooks.append(optimizer.register_load_state_dict_pre_hook(lambda *_: self.drain()))
        hooks.append(optimizer.register_load_state_dict_post_hook(self._after_optimizer_loaded))
        hooks += when_loaded(model, self._parameters, self._reloaded.add)
        if self._overlaps_forward:
            hooks += [one for module in model.modules() for one in drained_by(module, self.drain)]
        return hooks

    def close(self, *, patience_seconds: float | None = None) -> None:
        """Bring the updates under way to their end, then take the hooks away and end the engine."""
        if patience_seconds is not None:
            self._engine.wait_no_longer_than(patience_seconds)
        if self._uses is not None:
            self._uses.close()
        if self._buffers is not None:
            self._buffers.close()
        self._passes.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._seals.clear()
        try:
            if not self._engine.has_failed:
                self.drain()
        except OperationError:
            # Threads that wait for who does not come would never end.
            self._execution.links.abort()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._engine.close()
            self._execution.bring_states_home()
        finally:
            self._execution.close()
            if self._compute is not None:
                self._compute.close()

    def drain(self) -> None:
        """Wait for all updates that are under way: from here on parameters are those of the last step.

        Under staleness: those that the next step is to use.
        """
        self._engine.wait_done(iterations_back=1)

    @property
    def step(self) -> int:
        """How many steps were made, those before a checkpoint among them."""
        return self._engine.iteration

    def settle(self, what: str) -> None:
        """Between two steps: have nothing under way. `what` is called, and refused where gradients are."""
        if self._came or (self._synchronised and not self._ends_with_backward):
            raise OperationError(f"{what} between backward and optimizer.step(): gradients are on their way")
        self.drain()
        self._follow_reloaded()

    def go_on_from(self, loading: Loading) -> None:
        """Put in place what was read from a checkpoint. Nothing is under way."""
        self._execution.memory.forget()
        put_in_place(self.training, loading)
        self._reloaded.clear()
        self._engine.restart(loading.step)
        self._engine.begin()

    def bring_home(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Give the user's optimizer the state of what is kept apart: until the next step it has the whole of it."""
        self._execution.bring_states_home(entries)
        self._is_home = True

    def where(self) -> str:
        """The operations under way."""
        return self._engine.where()

    def describe(self) -> str:
        """The engine, the plan that it carries out, and who updates."""
        names = list(self._engines)
        updates = "the user's optimizer updates everything"
        if names:
            whose = "everything" if len(names) == len(self._parameters) else f"{names[0]} and {len(names) - 1} more"
            updates = f"the engine updates {whose}"
        return described(self._plan, "autosync's engine", [updates], self._buffers)

    def __repr__(self) -> str:
        return self.describe()

    # The backward pass.

    def _gradient_hook(self, name: str) -> Any:
        number = self._numbers[name]

        def ready(parameter: torch.nn.Parameter) -> None:
            if not self.syncs:
                self._seals.refuse_lifted()
                self._synchronised = False
                self._execution.forget(name)
                return
            if self._synchronised:
                self._refuse_second_backward(name)
            if not self._came:
                self._first_gradient()
            self._came.add(name)
            self._take(name, number, parameter)

        return ready

    def _refuse_second_backward(self, name: str) -> None:
        if not self._ends_with_backward:
            raise OperationError(
                f"a second backward pass before optimizer.step(): the gradient of {name} is on its way already "
                "(accumulate under no_sync; the last backward pass goes outside)"
            )

    def _backward_begins(self) -> None:
        # What came in an earlier pass, and is here still, came in one that has raised an error.
        self._has_failed = self._has_failed or bool(self._came)
        self._came.clear()
        self._seals.lift()

    def _follow_reloaded(self) -> None:
        if self._reloaded:
            self.drain()
            self._execution.follow_parameters(self._reloaded, self._engine.iteration)
            self._reloaded.clear()

    def _first_gradient(self) -> None:
        self._passes.gradient_came()
        self._seals.refuse_lifted()
        if self._has_failed:
            raise OperationError(
                "a backward pass has ended with an error when some gradients were on their way already, to which "
                "nothing can be added (release(model) and parallelize again to go on)"
            )
        self._follow_reloaded()
        # What earlier iterations still read must not be overwritten.
        self._engine.wait_due(iterations_back=1)

    def _take(self, name: str, number: int, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        assert gradient is not None, "the gradient that was just accumulated"
        seen = self._execution.take_gradient(name, gradient, self._engine.iteration)
        if seen is not gradient and name not in self._engines:
            parameter.grad = seen
        self._engine.gradient_ready(number)

    def _backward_ends(self) -> None:
        if not self._came:
            self._seals.restore()
            return
        if self._compute is not None:
            self._compute.backward_ends()
        for name, parameter in self._parameters.items():
            if name in self._came:
                continue
            if parameter.grad is None:
                # As zero it would still decay and move by momentum, which alone it would not; DDP refuses it too.
                raise OperationError(f"{name} got no gradient in this step (a variable of the bundle gets one in each)")
            # It came in earlier microsteps alone.
            self._take(name, self._numbers[name], parameter)
        self._came.clear()
        self._engine.wait("backward_returns")
        for name in self._returned:
            gradient = self._parameters[name].grad
            assert gradient is not None, "every variable has got one"
            self._execution.memory.return_gradient(name, gradient)
        for name in self._sparse:
            self._parameters[name].grad = self._execution.sparse.give_back(name, self._engine.iteration)
        self._seals.seal()
        self._declared.begin()
        self._synchronised = True
        if self._ends_with_backward:
            self._engine.step_called()
            self._engine.user_updated()
            self._next_iteration()

    # The step.

    def _before_step(self, _: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if any(argument is not None for argument in (*arguments[1:], *options.values())):
            raise OperationError("optimizer.step(closure): a closure's backward passes cannot be synchronised")
        if not self._synchronised:
            raise OperationError("optimizer.step() was called without a synchronised backward pass before it")
        self._expected.check()
        if self._ends_with_backward:
            return
        self._seals.remove()
        self._call_step()

    def _call_step(self) -> None:
        self._leave_home()
        scale = self._declared.end()
        if self._execution.optimizer is not None:
            self._execution.optimizer.note(self._engine.iteration, scale)
        self._engine.step_called()

    def _leave_home(self) -> None:
        """What is kept apart changes there from here on: what the user's optimizer has of it will not be true."""
        if self._is_home and self.kept_apart:
            self.drain()
            self._execution.bind_states()
            self._execution.drop_states(self.kept_apart)
        self._is_home = False

    def _skip_step(self) -> None:
        """The user's scaler leaves out this step, on all ranks, which have all heard of the same overflow."""
        self._seals.clear()
        self._call_step()
        self._after_step()

    def _sum_of_squares(self) -> float:
        """Of all gradients of this step, as soon as it is known."""
        self._engine.wait_operations(self._norms)
        return float(self._execution.memory.norms(self._engine.iteration).sum())

    def _after_step(self, *_: Any) -> None:
        self._synchronised = False
        if self._ends_with_backward:
            return
        self._seals.put_back()
        self._engine.user_updated()
        if self._overlaps_forward and self._uses is not None and self._uses.is_known:
            self._engine.begin()
            return
        self._engine.wait("step_returns")
        self._next_iteration()

    def _next_iteration(self) -> None:
        self._engine.wait_due()
        self._engine.begin()

    def _before_use(self, variables: tuple[int, ...]) -> None:
        for variable in variables:
            self._engine.wait("before_use", variable)

    def _before_optimizer_state(self, _: torch.optim.Optimizer) -> None:
        self.drain()
        if self.kept_apart and not self._is_home:
            raise OperationError(
                f"the optimizer's state of {min(self.kept_apart)} is where it is updated, at a server or in shards "
                "(autosync.consolidate(model) on all workers brings it here; autosync.save(model, PATH) saves it from "
                "where it is)"
            )
        self._execution.bring_states_home()

    def _after_optimizer_loaded(self, _: torch.optim.Optimizer) -> None:
        self._is_home = True
