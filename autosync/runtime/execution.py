"""What carries out a rank's operations: its memory, its connections, and who does which operation."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.device import Placement
from autosync.runtime.engine_optimizer import EngineOptimizer, EngineUpdate
from autosync.runtime.factors import Factors
from autosync.runtime.links import Links
from autosync.runtime.locals import Locals
from autosync.runtime.memory import Memory
from autosync.runtime.sparse import Sparse
from autosync.runtime.states import bring_home
from autosync.runtime.transfers import Mover
from autosync.runtime.updates import EngineUpdates


class Execution:
    """Does one rank's operations for the engine. `parameters` are the tensors of the plan's variables by name.

    `placement` is by default what the plan and its parameters ask for.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, torch.Tensor],
        *,
        links: Links,
        updates: EngineUpdates,
        optimizer: EngineOptimizer | None,
        checks: bool = False,
        placement: Placement | None = None,
    ) -> None:
        self._plan = plan
        self._parameters = parameters
        self._links = links
        rank = links.rank
        self.optimizer = optimizer
        self.memory = Memory(plan, parameters, contributes=plan.ranks[rank].role == "worker")
        mine = [index for index, one in enumerate(plan.operations) if any(rank in group for group in one.groups)]
        self._updates = {
            index: EngineUpdate(plan, index, rank, memory=self.memory, optimizer=optimizer)
            for index in mine
            if index in updates.operations and optimizer is not None
        }
        self.sparse = Sparse(plan, self.memory)
        self.factors = Factors(plan, self.memory)
        self._mover = Mover(
            plan, self.memory, links, placement=placement or Placement.of(plan, parameters), checks=checks
        )
        self._locals = Locals(plan, self.memory, rank=rank, updates=self._updates)

    def begin_thread(self) -> None:
        """Nothing that the engine computes is differentiated."""
        torch.set_grad_enabled(False)

    def transfer(self, operation: int, iteration: int) -> None:
        self._mover.run(operation, iteration)

    def local(self, operation: int, iteration: int) -> None:
        self._locals.run(operation, iteration)

    def abort(self) -> None:
        self._links.abort()

    def take_gradient(self, name: str, gradient: torch.Tensor, iteration: int) -> torch.Tensor:
        """A variable's gradient is complete: bring it to where its transfers find it. The one that users see now."""
        if name in self.sparse.variables:
            self.sparse.take(name, gradient, iteration)
            return gradient
        seen = self.memory.take_gradient(name, gradient, iteration)
        if name in self.factors.variables:
            self.factors.take(name, seen, iteration)
        return seen

    def forget(self, name: str) -> None:
        """A variable's gradient came that is accumulated alone."""
        if name in self.factors.variables:
            self.factors.forget(name)

    def bring_states_home(self) -> None:
        """Give the user's optimizer what the engine has of its state in pieces, where this rank has them all."""
        if self.optimizer is not None and self.optimizer.users is not None:
            states = [state for update in self._updates.values() for state in update.piece_states()]
            bring_home(self._plan, states, self._parameters, self.optimizer.users)

    def engine_state(self) -> dict[str, torch.Tensor]:
        """What local operations keep from step to step, by name: a copy."""
        return {name: values.clone() for name, values in self._locals.kept()}

    def load_engine_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `engine_state` gave under the same plan."""
        kept = dict(self._locals.kept())
        for name in [*kept, *state]:
            ours, theirs = kept.get(name), state.get(name)
            if ours is None or theirs is None:
                where = "the state" if theirs is None else "this plan"
                raise OperationError(f"{where} has no {name}: the state is not of this plan, or of another rank")
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                is_like = f"{theirs.dtype} of shape {list(theirs.shape)}"
                raise OperationError(f"{name} is {is_like}; here it is {ours.dtype} of shape {list(ours.shape)}")
        for name, values in kept.items():
            values.copy_(state[name])

    def close(self) -> None:
        """Give back all connections."""
        self.factors.close()
        self._links.close()
