"""Patches torch while a script runs, and restores it afterwards."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel, distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from autosync.runtime.parallelize import bare_of, num_parallelized
from autosync.runtime.session.optimizer_steps import Arguments, after_closure
from autosync.runtime.session.start import refusing_before_start
from autosync.script.bundles import bundle_of, refuse_shares, refuse_state_kept_apart
from autosync.script.input_door import InputDoor
from autosync.script.optimizers import Optimizers
from autosync.script.refusals import refuse_arguments, replaced_methods
from autosync.script.stand_in import BundleReducer, PlainOutputs, QuietLogger, close_orphans, closure_has_run
from autosync.strategy.bundle import Bundle

Method = Callable[..., Any]


class Door:
    """While the door is open, every `DistributedDataParallel` of the process trains with one of the bundles."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        self._bundles = bundles
        self._optimizers = Optimizers()
        self._num_wrapped = 0
        self._num_parallelized = num_parallelized()
        self._wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        settings = next((one.strategy.input for one in bundles if one.strategy.input is not None), None)
        self._input = InputDoor(settings, is_training=self._is_training, tell=_tell) if settings else None

    @property
    def was_used(self) -> bool:
        """Whether the script has wrapped a model or called `autosync.parallelize` itself."""
        return bool(self._num_wrapped) or num_parallelized() > self._num_parallelized

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Apply the patches, and undo them at the end."""
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in self.patches()]
        followed = register_optimizer_step_pre_hook(_following_closures)
        try:
            for owner, name, method in self.patches():
                setattr(owner, name, method)
            yield
        finally:
            followed.remove()
            for owner, name, method in before:
                setattr(owner, name, method)

    def patches(self) -> list[tuple[Any, str, Any]]:
        """Return each patch: the class or module, the name of the attribute, and the attribute's new value."""
        return [
            (DistributedDataParallel, "_ddp_init_helper", self._wrap),
            (DistributedDataParallel, "_pre_forward", _beginning(vars(DistributedDataParallel)["_pre_forward"])),
            *((DistributedDataParallel, name, method) for name, method in replaced_methods()),
            (distributed, "_DDPSink", PlainOutputs),
            (torch.optim.Optimizer, "__init__", self._noting(vars(torch.optim.Optimizer)["__init__"])),
            *self._input_patches(),
        ]

    def _input_patches(self) -> Iterator[tuple[Any, str, Any]]:
        if self._input is not None:
            yield DataLoader, "_get_iterator", self._input.replacing(vars(DataLoader)["_get_iterator"])

    def _is_training(self) -> bool:
        return all(ddp.module.training for ddp in self._wrapped)

    @property
    def _wrap(self) -> Method:
        def wrap(ddp: Any, *_: object, **__: object) -> None:
            model = bare_of(ddp.module)
            close_orphans(model)
            # Another rank whose model fits would wait for this one at its first forward pass.
            with refusing_before_start(ddp.process_group):
                bundle = bundle_of(model, self._bundles)
                refuse_arguments(ddp, (variable.name for variable in bundle.model.variables))
                refuse_shares(bundle)
                refuse_state_kept_apart(bundle)
            ddp.reducer = BundleReducer(ddp, bundle, self._optimizers)
            ddp.logger = QuietLogger()
            # This DDP method refuses models whose SyncBatchNorm layers cannot work.
            ddp._passing_sync_batchnorm_handle(ddp.module)  # noqa: SLF001 - DDP does so
            self._num_wrapped += 1
            self._wrapped.add(ddp)

        return wrap

    def _noting(self, stock: Method) -> Method:
        def init(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
            stock(optimizer, *arguments, **options)
            self._optimizers.note(optimizer)

        return init


def _tell(words: str) -> None:
    """Write a line for the user, once for all ranks."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"autosync: {words}\n")
        sys.stderr.flush()


def _following_closures(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Arguments | None:
    """Have sessions that begin within a closure learn when it has returned: they have missed the begin of its step."""
    return after_closure(optimizer, arguments, options, lambda: closure_has_run(optimizer))


def _beginning(stock: Method) -> Method:
    def pre_forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            ddp.reducer.begin()
        return stock(ddp, *inputs, **options)

    not_compiled: Method = torch.compiler.disable(pre_forward)  # type: ignore[no-untyped-call]
    return not_compiled
