"""`autosync.parallelize`: all that a training script changes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.runtime.engine import Engine
from autosync.runtime.support import unsupported
from autosync.strategy.bundle import Bundle, load_bundle


def parallelize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bundle: Bundle | Path | str,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Train a model by a bundle's strategy, after `init_process_group`.

    The model and the optimizer that come back are the same objects: gradients are synchronised as backward makes them,
    and `optimizer.step()` updates every rank's parameters. All ranks start from rank 0's parameters and buffers.
    """
    if not isinstance(bundle, Bundle):
        bundle = load_bundle(bundle)
    group = process_group or dist.group.WORLD
    if group is None:
        raise OperationError("there is no process group: call torch.distributed.init_process_group first")
    _ENGINES[model] = _Session(model, optimizer, bundle, group)
    return model, optimizer


@contextlib.contextmanager
def no_sync(model: torch.nn.Module) -> Iterator[None]:
    """Accumulate gradients without synchronising them, as DDP's `no_sync` does; the last microstep goes outside."""
    session = _ENGINES[model]
    session.syncs = False
    try:
        yield
    finally:
        session.syncs = True


def release(model: torch.nn.Module) -> None:
    """Give a model back as it was: no hooks, no engine. For whoever runs one strategy after another."""
    _ENGINES.pop(model).close()


class _Session:
    """One model under one plan: the hooks that tell the engine what happens."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, bundle: Bundle, group: dist.ProcessGroup
    ) -> None:
        plan = lower(bundle.strategy, bundle.model, bundle.cluster)
        reasons = unsupported(plan)
        if reasons:
            raise OperationError("this engine does not run the strategy: " + "; ".join(reasons[:3]))
        if dist.get_world_size(group) != plan.num_workers:
            what = f"the process group has {dist.get_world_size(group)} ranks"
            raise OperationError(f"{what}; the bundle was made for {plan.num_workers} workers")
        self.syncs = True
        self._optimizer = optimizer
        self._parameters = _parameters_of(model, bundle)
        _broadcast_state(model, group)
        names = [variable.name for variable in bundle.model.variables]
        self._engine = Engine(plan, self._parameters, names, optimizer, group)
        self._engine_updated = self._engine.engine_updated()
        self._callback_is_queued = False
        self._synchronised = False
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(name))  # type: ignore[no-untyped-call]
            for name, parameter in self._parameters.items()
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._engine.close()

    def _gradient_hook(self, name: str) -> Any:
        def ready(_: torch.Tensor) -> None:
            if not self.syncs:
                return
            if not self._callback_is_queued:
                self._callback_is_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # noqa: SLF001 - DDP's own way to hear of the end of backward
            self._engine.gradient_ready(name)

        return ready

    def _backward_ends(self) -> None:
        self._callback_is_queued = False
        self._engine.all_gradients_ready()
        self._engine.wait("backward_returns")
        self._synchronised = True

    def _before_step(self, *_: Any) -> None:
        """The user's optimizer leaves alone what the engine updates: a parameter without a gradient is skipped."""
        if not self._synchronised:
            raise OperationError("optimizer.step() was called without a synchronised backward pass before it")
        self._engine.step_called()
        self._engine.wait("step_returns")
        self._engine.end_step()
        for name in self._engine_updated:
            self._parameters[name].grad = None

    def _after_step(self, *_: Any) -> None:
        self._synchronised = False


_ENGINES: weakref.WeakKeyDictionary[torch.nn.Module, _Session] = weakref.WeakKeyDictionary()
"""The session of each parallelized model."""


def _parameters_of(model: torch.nn.Module, bundle: Bundle) -> dict[str, torch.nn.Parameter]:
    """The bundle's variables among the model's parameters; any difference is named."""
    found = dict(model.named_parameters())
    for variable in bundle.model.variables:
        parameter = found.get(variable.name)
        if parameter is None:
            raise OperationError(f"the model has no parameter {variable.name}, which the bundle synchronises")
        if tuple(parameter.shape) != variable.shape:
            what = f"{variable.name} has shape {list(parameter.shape)}"
            raise OperationError(f"{what}; the bundle was made for {list(variable.shape)}")
    known = {variable.name for variable in bundle.model.variables}
    known.update(untrained.name for untrained in bundle.model.untrained)
    extra = [name for name, parameter in found.items() if parameter.requires_grad and name not in known]
    if extra:
        raise OperationError(f"the bundle knows nothing of the trainable parameter {extra[0]}")
    return {variable.name: found[variable.name] for variable in bundle.model.variables}


@torch.no_grad()
def _broadcast_state(model: torch.nn.Module, group: dist.ProcessGroup) -> None:
    root = dist.get_global_rank(group, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, root, group=group)
