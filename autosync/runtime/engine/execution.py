"""What carries out a rank's operations: its memory, its connections, and who does which operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.device import Placement
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.engine_update import EngineUpdate
from autosync.runtime.local.engine_updates import EngineUpdates, is_by_every_worker
from autosync.runtime.local.factors import Factors
from autosync.runtime.local.operations import Locals
from autosync.runtime.local.sparse_rows import Rows, Sparse
from autosync.runtime.local.stale_parameters import RowsPlace, no_rows, rows_on_the_way
from autosync.runtime.memory.kept_state import Held, Path, PieceState, Place, bring_home
from autosync.runtime.memory.regions import Memory
from autosync.runtime.session.pending_parameters import pass_this_thread
from autosync.runtime.wire.links import Links
from autosync.runtime.wire.transfers import Mover

BEGIN_AS_PARAMETERS = ("master", "anchor", "incoming")
"""Beginnings of what is kept that begins with the parameters' values."""


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
            plan, self.memory, links, placement=placement or Placement.of(plan, parameters), checks=checks
        )
        self._locals = Locals(plan, self.memory, rank=rank, updates=self._updates)

    def begin_thread(self) -> None:
        """Nothing that the engine computes is differentiated, and it makes the updates that others wait for."""
        torch.set_grad_enabled(False)
        pass_this_thread()

    def holders(self) -> dict[str, int]:
        """How many tensors of the engine's share the memory of each of the user's parameters, by name."""
        return Counter(name for update in self._updates.values() for name in update.aliases)

    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None:
        self._mover.run(operation, iteration, following)

    def waits_its_turn(self, operation: int) -> bool:
        return self._mover.waits_its_turn(operation)

    def local(self, operation: int, iteration: int) -> None:
        self._locals.run(operation, iteration)

    def abort(self) -> None:
        self.links.abort()

    def take_gradient(self, name: str, gradient: torch.Tensor, iteration: int) -> torch.Tensor:
        """A variable's gradient is complete: bring it to where its transfers find it. The one that users see now."""
        if name in self.sparse.variables:
            self.sparse.take(name, gradient, iteration)
            return gradient
        seen = self.memory.take_gradient(name, gradient, iteration)
        if name in self.factors.variables:
            self.factors.take(name, seen, iteration)
        return seen

    def take_nothing(self, name: str, iteration: int) -> torch.Tensor | None:
        """This rank has no gradient of a variable in this step. What users see of what all ranks have, if dense."""
        if name in self.sparse.variables:
            self.sparse.take_nothing(name, iteration)
            return None
        if name in self.factors.variables:
            self.factors.take_nothing(name, iteration)
        return self.memory.take_nothing(name, iteration)

    def forget(self, name: str) -> None:
        """A variable's gradient came that is accumulated alone."""
        if name in self.factors.variables:
            self.factors.forget(name)

    def bring_states_home(self, entries: Mapping[str, dict[str, Any]] | None = None) -> None:
        """Give the user's optimizer what the engine has of its state in pieces, where this rank has them all.

        `entries` are states of whole variables that other ranks have.
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
        """The variables whose state is where the user's optimizer has it."""
        return {name for update in self._updates.values() for name in update.aliases}

    def bind_states(self) -> None:
        """Have the engine's updates take what the user's optimizer was given. Nothing is under way."""
        for update in self._updates.values():
            update.bind()

    def reload_states(self, names: Collection[str]) -> None:
        """Have the engine go on from what the user's optimizer has of some variables. Nothing is under way."""
        for update in self._updates.values():
            update.reload(names)

    def load_states(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """On a rank that only serves: go on from the optimizer's states of whole variables."""
        for update in self._updates.values():
            update.load_states(entries)

    def states(self) -> Iterator[tuple[Place, bool, PieceState]]:
        """The optimizer's states of what the engine updates here; and whether all workers have the same."""
        for index, update in self._updates.items():
            is_shared = is_by_every_worker(self._plan, self._plan.operations[index])
            for piece in update.all_states():
                yield Place.of(self._plan.parts[piece.part], piece.start, piece.stop), is_shared, piece

    def drop_states(self, names: Iterable[str]) -> None:
        """Take states from the user's optimizer that are kept elsewhere, or in pieces: those of variables by name."""
        if self.optimizer is not None and self.optimizer.entries is not None:
            here = self._aliases()
            for name in names:
                if name not in here:
                    self.optimizer.entries.drop(self._parameters[name])

    def kept(self, step: int) -> Iterator[Held]:
        """What outlives a step (so many were made) beside parameters and the optimizer's state: the very tensors."""
        return self._locals.kept(step)

    def kept_factors(self) -> Iterator[tuple[Path, torch.Tensor]]:
        """PowerSGD's right factors, each with the part that it is of: the very tensors."""
        for part, factor in self._locals.kept_factors():
            yield self._path("right", part), factor

    def rows_on_the_way(self, step: int) -> Iterator[tuple[Path, Rows]]:
        """The rows that stale servers have sent and nobody has written yet."""
        for path, one in self._row_places(step):
            yield path, self.memory.get(one.region, one.iteration)

    def paths_on_the_way(self, step: int) -> list[Path]:
        """The paths of such rows."""
        return [path for path, _ in self._row_places(step)]

    def put_rows(self, step: int, rows: Mapping[Path, Rows | None]) -> None:
        """Have such rows wait to be written; None: no rows."""
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
        """Somebody has given variables other values: what is late or apart goes on from these. Nothing is under way."""
        for what, place, values in self.kept(step):
            if place.variable in names and what.startswith(BEGIN_AS_PARAMETERS):
                values.copy_(place.read(self._parameters[place.variable].detach()))
        self.put_rows(step, {path: None for path in self.paths_on_the_way(step) if path[1] in names})

    def close(self) -> None:
        """Give back all connections."""
        self.factors.close()
        self._mover.close()
        self.links.close()
