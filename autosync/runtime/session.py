"""One model in training under one plan: the hooks that tell the engine what happens, and what it cannot do refused.

Where every worker updates everything for itself, a step of the engine ends with the backward pass: from there on
gradients are the same on all ranks and the rest is the user's, who may clip, skip a step or go backward again as under
DDP. Where the engine updates variables itself (at a server, in shards), its step ends with `optimizer.step()`, and
between the two these gradients are the engine's: whoever changes them is told, for no rank holds the whole of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.runtime.agreement import check_optimizer, check_same_bundle, parameters_of, send_state, unsynchronised
from autosync.runtime.engine import Engine
from autosync.runtime.groups import Groups
from autosync.runtime.support import unsupported
from autosync.runtime.updates import engine_updates
from autosync.strategy.bundle import Bundle


class Session:
    """The engine of one model, with its hooks. `syncs` is false while gradients only accumulate."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bundle: Bundle,
        group: dist.ProcessGroup,
        timeout_seconds: float,
        *,
        init_sync: bool,
    ) -> None:
        plan = lower(bundle.strategy, bundle.model, bundle.cluster)
        reasons = unsupported(plan)
        if reasons:
            raise OperationError("this engine does not run the strategy: " + "; ".join(reasons[:3]))
        self.syncs = True
        self._parameters = parameters_of(model, bundle)
        updates = engine_updates(plan)
        if updates.variables:
            check_optimizer(optimizer, bundle.model)
        self._groups = Groups(group, plan, timeout_seconds)
        check_same_bundle(bundle, self._groups)
        self._groups.make_for(plan)
        if init_sync:
            send_state(model, self._groups)
        names = [variable.name for variable in bundle.model.variables]
        self._engine = Engine(
            plan,
            updates=updates,
            parameters=self._parameters,
            variables=names,
            optimizer=optimizer,
            groups=self._groups,
            timeout_seconds=timeout_seconds,
        )
        self._engine_updated = {name: self._parameters[name] for name in names if name in updates.variables}
        self._grads: dict[str, tuple[torch.Tensor | None, int]] = {}
        self._callback_is_queued = False
        self._synchronised = False
        self._hooks = self._make_hooks(model, optimizer, bundle)

    def _make_hooks(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, bundle: Bundle) -> list[Any]:
        hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
        ]
        hooks += [
            parameter.register_post_accumulate_grad_hook(_refuse_gradient(name))  # type: ignore[no-untyped-call]
            for name, parameter in unsynchronised(model, bundle).items()
        ]
        hooks.append(optimizer.register_step_pre_hook(self._before_step))
        hooks.append(optimizer.register_step_post_hook(self._after_step))
        if self._engine_updated:
            hooks.append(optimizer.register_state_dict_pre_hook(self._refuse_state))
        return hooks

    def close(self) -> None:
        """Take the hooks away and end the engine's thread."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._engine.close()
        self._groups.close()

    def _gradient_hook(self, name: str) -> Any:
        def ready(_: torch.Tensor) -> None:
            if self._engine_updated and self._synchronised:
                raise OperationError(
                    f"a second backward pass before optimizer.step(): the gradient of {name} is on its way already "
                    "(accumulate under no_sync; the last backward pass goes outside)"
                )
            if not self.syncs:
                self._synchronised = False
                return
            if not self._callback_is_queued:
                self._callback_is_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # noqa: SLF001 - DDP's own way to hear of the end of backward
            self._engine.gradient_ready(name)

        return ready

    def _backward_ends(self) -> None:
        self._callback_is_queued = False
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                # As zero it would still decay and move by momentum, which alone it would not; DDP refuses it too.
                raise OperationError(f"{name} got no gradient in this step (a variable of the bundle gets one in each)")
        self._engine.all_gradients_ready()
        self._engine.wait("backward_returns")
        if self._engine_updated:
            self._grads = self._grads_now()
        else:
            self._engine.finish_step()
        self._synchronised = True

    def _grads_now(self) -> dict[str, tuple[torch.Tensor | None, int]]:
        """The gradients that are the engine's, with their versions: what the engine writes raises none."""
        return {
            name: (parameter.grad, -1 if parameter.grad is None else parameter.grad._version)  # noqa: SLF001 - torch has no other way to ask
            for name, parameter in self._engine_updated.items()
        }

    def _before_step(self, _: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if any(argument is not None for argument in (*arguments[1:], *options.values())):
            raise OperationError("optimizer.step(closure): a closure's backward passes cannot be synchronised")
        if not self._synchronised:
            raise OperationError("optimizer.step() was called without a synchronised backward pass before it")
        if not self._engine_updated:
            return
        now = self._grads_now()
        for name, (gradient, version) in self._grads.items():
            if now[name][0] is not gradient or now[name][1] != version:
                raise OperationError(
                    f"the gradient of {name} was changed between backward and step; no rank holds the whole of it "
                    "(clipping and loss scaling must be declared in the task that is tuned)"
                )
        self._engine.finish_step()
        for parameter in self._engine_updated.values():
            # The user's optimizer skips a parameter without a gradient: this one is updated.
            parameter.grad = None

    def _after_step(self, *_: Any) -> None:
        self._synchronised = False
        for name, (gradient, _version) in self._grads.items():
            self._engine_updated[name].grad = gradient
        self._grads = {}

    def _refuse_state(self, _: torch.optim.Optimizer) -> None:
        name = next(iter(self._engine_updated))
        raise OperationError(
            f"the optimizer's state of {name} is where it is updated, at a server or in shards, and cannot be gathered "
            "(to save it, train by a strategy that updates on every worker: synchroniser all_reduce)"
        )


def _refuse_gradient(name: str) -> Any:
    def refuse(_: torch.Tensor) -> None:
        raise OperationError(f"{name} got a gradient, which the bundle does not synchronise: it got none when profiled")

    return refuse
