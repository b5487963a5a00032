"""Does a rank's operations for the engine, with the rank's memory, connections and updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.device import DevicePlacement
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_update import EngineUpdate
from autosync.runtime.local.engine_updates import EngineUpdates, is_by_every_worker
from autosync.runtime.local.factors import Factors
from autosync.runtime.local.operations import Locals
from autosync.runtime.local.sparse_rows import Rows, Sparse
from autosync.runtime.local.stale_parameters import RowsPlace, no_rows, rows_on_the_way
from autosync.runtime.memory.kept_state import Held, Path, PieceState, Place, bring_home
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.travelling import Travelling
from autosync.runtime.session.pending_parameters import pass_this_thread
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfers import Mover

BEGIN_AS_PARAMETERS = ("master", "anchor", "incoming")
"""Prefixes of the kinds of kept state that start as copies of the parameters."""


class Execution:
    """Does one rank's operations for the engine. `parameters` are the tensors of the plan's variables by name.

    `placement` defaults to what the plan and its parameters require. With `travelling`, some gradients may stay where
    they are.
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
        placement: DevicePlacement | None = None,
        travelling: Travelling | None = None,
    ) -> None:
        self.links = links
        self._plan = plan
        self._parameters = parameters
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
            plan,
            self.memory,
            links,
            placement=placement or DevicePlacement.of(plan, parameters),
            checks=checks,
            travelling=travelling,
        )
        self.travelling = travelling
        self._locals = Locals(plan, self.memory, rank=rank, updates=self._updates, travelling=travelling)

    def begin_thread(self) -> None:
        """Prepare an engine thread: it computes without autograd, and does not wait for updates of parameters."""
        torch.set_grad_enabled(False)
        pass_this_thread()

    def holders(self) -> dict[str, int]:
        """Count the engine's tensors that share the memory of each of the user's parameters, by name."""
        return Counter(name for update in self._updates.values() for name in update.sharing())

    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None:
        self._mover.run(operation, iteration, following)

    def waits_its_turn(self, operation: int, iteration: int) -> bool:
        return self._mover.waits_its_turn(operation, iteration)

    def local(self, operation: int, iteration: int) -> None:
        self._locals.run(operation, iteration)

    def heard_at(self) -> float:
        return self.links.heard_at

    def abort(self) -> None:
        self.links.abort()

    def take_gradient(self, name: str, gradient: torch.Tensor, iteration: int, *, factor: float = 1.0) -> torch.Tensor:
        """Store a variable's complete gradient where its transfers read it; return the gradient that users see now.

        First it is scaled in place by `factor`, the weight of this rank's batch.
        """
        _scale(gradient, factor)
        if name in self.sparse.variables:
            self.sparse.take(name, gradient, iteration)
            return gradient
        seen = self.memory.take_gradient(name, gradient, iteration)
        if name in self.factors.variables:
            self.factors.take(name, seen, iteration, factor=factor)
        return seen

    def take_nothing(self, name: str, iteration: int) -> torch.Tensor | None:
        """Record that this rank has no gradient of a variable; return the gradient that users see, None if sparse."""
        if name in self.sparse.variables:
            self.sparse.take_nothing(name, iteration)
            return None
        if name in self.factors.variables:
            self.factors.take_nothing(name, iteration)
        return self.memory.take_nothing(name, iteration)

    def forget(self, name: str) -> None:
        """Drop what was recorded for a variable's gradient that is only accumulated, not synchronised."""
        if name in self.factors.variables:
            self.factors.forget(name)

    def forget_iterations(self) -> None:
        """Drop everything that belongs to an iteration, because iteration numbers will be used again."""
        self.memory.forget()
        if self.travelling is not None:
            self.travelling.forget()

    def bring_states_home(self, entries: Mapping[str, dict[str, Any]] | None = None) -> None:
        """Give the user's optimizer the engine's state of all variables of which this rank has every piece.

        `entries` are states of whole variables that came from other ranks.
        """
        if self.optimizer is not None and self.optimizer.entries is not None:
            self.bind_states()
            states = [state for update in self._updates.values() for state in update.piece_states()]
            bring_home(self._plan, states, self._parameters, self.optimizer.entries.put)
            here = self._aliases()
            for name, entry in (entries or {}).items():
                if name not in here:
                    self.optimizer.entries.put(self._parameters[name], entry)

    def _aliases(self) -> set[str]:
        """Return the variables whose state the engine shares with the user's optimizer."""
        return {name for update in self._updates.values() for name in update.aliases}

    def bind_states(self) -> None:
        """Have the engine's updates use the user's optimizer state. No operation may be under way."""
        for update in self._updates.values():
            update.bind()

    def reload_states(self, names: Collection[str]) -> None:
        """Continue from the state that the user's optimizer has of some variables. No operation may be under way."""
        for update in self._updates.values():
            update.reload(names)

    def load_states(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from the optimizer's states of whole variables, on a rank that only serves."""
        for update in self._updates.values():
            update.load_states(entries)

    def states(self) -> Iterator[tuple[Place, bool, PieceState]]:
        """Yield place and state of each piece that the engine updates here, and whether all workers share the state."""
        for index, update in self._updates.items():
            is_shared = is_by_every_worker(self._plan, self._plan.operations[index])
            for piece in update.all_states():
                yield Place.of(self._plan.parts[piece.part], piece.start, piece.stop), is_shared, piece

    def drop_states(self, names: Iterable[str]) -> None:
        """Remove from the user's optimizer the states of variables (by name) that are kept elsewhere or in pieces."""
        if self.optimizer is not None and self.optimizer.entries is not None:
            here = self._aliases()
            for name in names:
                if name not in here:
                    self.optimizer.entries.drop(self._parameters[name])

    def kept(self, step: int) -> Iterator[Held]:
        """Yield the state that outlives step `step`, except parameters and optimizer state, without copying."""
        return self._locals.kept(step)

    def kept_factors(self) -> Iterator[tuple[Path, torch.Tensor]]:
        """Yield PowerSGD's right factors, each with the path of its part. The tensors are not copies."""
        for part, factor in self._locals.kept_factors():
            yield self._path("right", part), factor

    def rows_on_the_way(self, step: int) -> Iterator[tuple[Path, Rows]]:
        """Yield the rows that stale servers have sent and that are not yet written to the parameters."""
        for path, one in self._row_places(step):
            yield path, self.memory.get(one.region, one.iteration)

    def paths_on_the_way(self, step: int) -> list[Path]:
        """Return the paths of the rows that `rows_on_the_way` yields."""
        return [path for path, _ in self._row_places(step)]

    def put_rows(self, step: int, rows: Mapping[Path, Rows | None]) -> None:
        """Store rows by path, to be written to the parameters later; None stands for no rows."""
        for path, one in self._row_places(step):
            if path in rows:
                indices, values = rows[path] or no_rows(self._plan, one.part)
                here = Rows(indices.to(self.memory.device), values.to(self.memory.device))
                self.memory.put(one.region, one.iteration, here)

    def _row_places(self, step: int) -> Iterator[tuple[Path, RowsPlace]]:
        for one in rows_on_the_way(self._plan, rank=self.links.rank, step=step):
            yield (*self._path("rows", one.part), str(one.age)), one

    def _path(self, kind: str, index: int) -> Path:
        part = self._plan.parts[index]
        return kind, part.variable.name, f"{part.begin}:{part.end} of axis {part.axis}"

    @torch.no_grad()
    def follow_parameters(self, names: Collection[str], step: int) -> None:
        """Update the copies of parameters that the script has changed, and drop their late rows.

        No operation may be under way.
        """
        for what, place, values in self.kept(step):
            if place.variable in names and what.startswith(BEGIN_AS_PARAMETERS):
                values.copy_(place.read(self._parameters[place.variable].detach()))
        self.put_rows(step, {path: None for path in self.paths_on_the_way(step) if path[1] in names})

    def close(self) -> None:
        """Remove the hooks and close all connections."""
        self.factors.close()
        self._mover.close()
        self.links.close()


@torch.no_grad()
def _scale(gradient: torch.Tensor, factor: float) -> None:
    """Scale a gradient in its own memory."""
    if factor == 1.0:
        return
    # A sparse tensor that is scaled in place gets new values, which its detached twin would keep to itself.
    values = gradient.detach()._values() if gradient.is_sparse else gradient.detach()  # noqa: SLF001 - `values` wants a coalesced tensor
    if factor == 0.0:
        # A mean over nothing is NaN, and counts as nothing.
        values.zero_()
    else:
        values.mul_(factor)
