"""Guards the optimizers of a session's model: their state is current, and none updates the engine's variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.engine.execution import Execution
from autosync.runtime.local.joint_optimizer import Strangers, owners_of
from autosync.runtime.local.optimizer_state import Keeper
from autosync.runtime.serving.first_worker import Servers
from autosync.runtime.session.hooks import Hook


class Owned:
    """Guards the optimizers of a session whose engine updates `engines`; does nothing if `engines` is empty.

    No worker has the complete optimizer state of the variables in `apart`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        engines: Mapping[str, torch.nn.Parameter],
        *,
        execution: Execution,
        apart: Collection[str],
        drain: Any,
        servers: Servers | None,
    ) -> None:
        self._engines = engines
        self._execution = execution
        self._keeper: Keeper | None = None
        self._hooks: list[Any] = []
        source = execution.optimizer
        if not engines or source is None or source.entries is None:
            return
        held = owners_of(optimizer)
        self._keeper = Keeper(
            optimizer,
            source.entries,
            {name: parameter for name, parameter in engines.items() if id(parameter) in held},
            apart=apart,
            drain=drain,
            reload=execution.reload_states,
            bring=execution.bring_states_home,
            drop=execution.drop_states,
            serve=servers.hand_over_state if servers is not None and servers.update else None,
        )
        self._hooks = [
            Strangers(optimizer, engines),
            optimizer.register_state_dict_pre_hook(Hook(lambda *_: self.look())),
            optimizer.register_load_state_dict_pre_hook(Hook(lambda *_: drain())),
            optimizer.register_load_state_dict_post_hook(Hook(lambda *_: self._loaded())),
        ]

    def close(self) -> None:
        """Make the optimizers ordinary ones again. No operation may be under way."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def look(self) -> None:
        """Prepare for a read of the optimizer's whole state."""
        if self._keeper is not None:
            self._keeper.look()

    def _loaded(self) -> None:
        if self._keeper is not None:
            self._keeper.loaded()

    def settle(self) -> None:
        """Between two steps, have the engine take over what the script has made of the optimizer's state."""
        if self._keeper is not None:
            self._keeper.settle()

    def bring_home(self, entries: Mapping[str, dict[str, Any]], *, alone: bool) -> None:
        """Take over the states of whole variables, which all workers or this worker `alone` have collected."""
        self._execution.bring_states_home(entries)
        if self._keeper is not None:
            self._keeper.came_home(alone=alone)

    def backward_begins(self) -> None:
        """Prepare the optimizer's state for a step whose first gradient has come."""
        if self._keeper is not None:
            self._keeper.backward_begins()

    def step_begins(self) -> None:
        """Prepare the optimizer's state for the engine's step, which begins now."""
        if self._keeper is not None:
            self._keeper.step_begins()

    @property
    def in_step(self) -> bool:
        """Whether an optimizer's step is running."""
        return self._keeper is not None and self._keeper.in_step

    @in_step.setter
    def in_step(self, value: bool) -> None:
        if self._keeper is not None:
            self._keeper.in_step = value

    def refuse_closure(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse arguments of a step, unless they are a closure that is known to be called once, and first."""
        does = "updates what it has synchronised" if self._engines else "averages parameters after each step"
        raise OperationError(
            f"optimizer.step(closure) of {type(optimizer).__name__}: under this bundle the engine {does}, and has to "
            "know when the gradients are there. It knows for the classes of torch.optim except LBFGS, if a closure is "
            "the only argument (others run where every worker's own optimizer updates, as by preset ddp)"
        )


def refuse_local_gradients(*, are_local: bool) -> None:
    """Refuse a step of the user's optimizer if gradients are this rank's own and not synchronised."""
    if are_local:
        raise OperationError(
            "optimizer.step() was called without a synchronised backward pass before it: the last one was under "
            "no_sync, or under DistributedDataParallel another one after the same forward pass, and its gradients are "
            "those of this rank alone (the last backward pass of a step follows a forward pass outside of no_sync)"
        )
