"""Gradients that the engine will update with, for scripts that read or change them between backward and step.

Where every worker makes the whole update of a variable, each has the whole averaged gradient as soon as the messages
have arrived. A script that reads it waits for them, and gets a copy in the form of its parameter. What it changes in
the copy is given back to the engine before the step, as a change of `p.grad` counts under stock DDP. After the step a
script waits for the updates, which leave the gradients as the script has scaled and clipped them. They stay until the
first gradient of the next synchronised pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from autosync.errors import OperationError
from autosync.plan.types import Local, Plan
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.execution import Execution
from autosync.runtime.local.engine_update import joined_regions
from autosync.runtime.local.engine_updates import engine_updates, has_norms, is_by_every_worker
from autosync.runtime.memory.regions import cut
from autosync.runtime.memory.same_bits import have_same_bits
from autosync.runtime.memory.unused_variables import is_absent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Elements of a variable: from `start` on in a part, from `at` on in the buffer of an update."""

    update: int
    part: int
    start: int
    at: int
    num_elements: int


class WholeGradients:
    """The whole gradients of a step, from the end of its backward pass to the next pass that brings others."""

    def __init__(self, plan: Plan, execution: Execution, engine: Engine) -> None:
        self._plan = plan
        self._travelling = execution.travelling
        self._memory = execution.memory
        self._engine = engine
        self._optimizer = execution.optimizer
        # Before the step, after it or after it was skipped; gone: the engine's buffers are in use again.
        self._state: Literal["open", "updated", "skipped", "gone"] = "gone"
        # Norms for clipping are those of the gradients as they came.
        self._may_change = not has_norms(plan)
        self._pieces = {name: pieces for name, pieces in _pieces_of(plan).items() if _are_everywhere(plan, pieces)}
        # The last iteration that had gradients; None if there was none.
        self._last: int | None = None
        self._copies: dict[str, torch.Tensor] = {}
        self._factor = 1.0

    def begin(self) -> None:
        """The gradients of a step are on their way, or there."""
        self._state = "open"
        self._last = self._engine.iteration
        self._factor = 1.0
        self._copies.clear()

    def forget(self) -> None:
        """Forget the last step, because iteration numbers will be used again."""
        self.close()
        self._last = None

    def close(self) -> None:
        """The gradients of another step come, and take the place of the last ones."""
        self._state = "gone"
        self._copies.clear()

    def were_there(self, names: Iterable[str]) -> list[str]:
        """Return those of some variables of which any rank had a gradient in the last step; the step must be over.

        Variables that not every worker updates are not among them.
        """
        last = self._engine.iteration - 1
        return [name for name in names if self._last == last and name in self._pieces and self._was_used(name, last)]

    def read(self, name: str) -> torch.Tensor | None:
        """Wait for a variable's gradient and return a copy, the same one each time; None if this rank has none."""
        if self._state == "gone" or self._travelling is not None or name not in self._pieces:
            return None
        if name not in self._copies:
            assert self._last is not None, "there are gradients"
            if not self._is_whole(name) or not self._was_used(name, self._last):
                return None
            self._copies[name] = self._copied(name)
        return self._copies[name]

    def _is_whole(self, name: str) -> bool:
        """Wait for a variable's gradient, or for the updates after the step; return whether it is the script's."""
        if self._state == "open":
            self._engine.wait_operations(self._awaited(name))
            return True
        source = self._optimizer
        # What no optimizer holds is neither scaled nor clipped. While an optimizer's step runs, nothing is certain.
        if source is None or name not in source.group_of or self._engine.iteration == self._last:
            return False
        self._engine.wait_done(iterations_back=1)
        return source.changed_gradients != self._last

    def scale(self, factor: float) -> None:
        """Have the copies follow what the script's scaling and clipping makes of gradients: `factor` in all so far."""
        if factor == self._factor or self._state == "updated":
            return
        for name in self._changed():
            raise _change_refused(name)
        self._factor = factor
        for name, copy in self._copies.items():
            # Not the copy times a ratio: it must have the bits that `_changed` compares it with.
            copy.copy_(self._copied(name))

    def end(self, *, is_skipped: bool, factor: float) -> None:
        """Give changed gradients back to the engine, whose updates begin: they multiply gradients by `factor`."""
        for name in self._changed():
            if not self._may_change:
                raise _change_refused(name)
            self._give_back(name, self._copies[name])
        if factor != self._factor:
            # The optimizer's own step undoes the scale.
            self._factor = factor
            self._copies.clear()
        self._state = "skipped" if is_skipped else "updated"

    def _changed(self) -> list[str]:
        """Return the variables whose copies the script has changed."""
        return [name for name, copy in self._copies.items() if not have_same_bits(copy, self._copied(name))]

    def _awaited(self, name: str) -> Collection[int]:
        """Return the operations after which the gradient is whole."""
        return {
            edge.target
            for piece in self._pieces[name]
            for edge in self._plan.operations[piece.update].after
            if edge.event == "operation"
        }

    def _buffers(self, name: str, iteration: int) -> Iterator[tuple[_Piece, torch.Tensor]]:
        for piece in self._pieces[name]:
            operation = self._plan.operations[piece.update]
            assert isinstance(operation, Local), "updates are local"
            buffer = self._memory.view(operation.inputs, iteration)
            yield piece, buffer[piece.at : piece.at + piece.num_elements]

    def _was_used(self, name: str, iteration: int) -> bool:
        if self._travelling is not None:
            for piece in self._pieces[name]:
                if piece.part in self._travelling.resting(piece.update, iteration):
                    return False
        return not all(is_absent(values) for _, values in self._buffers(name, iteration))

    @torch.no_grad()
    def _copied(self, name: str) -> torch.Tensor:
        made = torch.empty_like(self._memory.parameter(name), requires_grad=False)
        for index, pieces in self._by_part(name).items():
            place = cut(made, self._plan.parts[index])
            flat = torch.empty(place.numel(), dtype=made.dtype, device=made.device)
            for piece, values in pieces:
                flat[piece.start : piece.start + piece.num_elements] = values
            place.copy_(flat.view(place.shape))
        # Updates have done so in the buffers.
        return made if self._factor == 1.0 or self._state == "updated" else made.mul_(self._factor)

    @torch.no_grad()
    def _give_back(self, name: str, changed: torch.Tensor) -> None:
        for index, pieces in self._by_part(name).items():
            flat = cut(changed, self._plan.parts[index]).reshape(-1)
            for piece, values in pieces:
                # Minus zero would say that no rank has used the variable.
                values.copy_(flat[piece.start : piece.start + piece.num_elements]).add_(0.0)

    def _by_part(self, name: str) -> dict[int, list[tuple[_Piece, torch.Tensor]]]:
        assert self._last is not None, "there are gradients"
        found: dict[int, list[tuple[_Piece, torch.Tensor]]] = {}
        for piece, values in self._buffers(name, self._last):
            found.setdefault(piece.part, []).append((piece, values))
        return found


def _pieces_of(plan: Plan) -> dict[str, list[_Piece]]:
    """Return where updates of the engine have the gradients of each variable."""
    found: dict[str, list[_Piece]] = {}
    for index in sorted(engine_updates(plan).operations):
        operation = plan.operations[index]
        assert isinstance(operation, Local), "updates are local"
        at = 0
        for part, start, size in joined_regions(plan, operation.outputs):
            piece = _Piece(update=index, part=part, start=start, at=at, num_elements=size)
            found.setdefault(plan.parts[part].variable.name, []).append(piece)
            at += size
    return found


def _are_everywhere(plan: Plan, pieces: list[_Piece]) -> bool:
    """Whether every worker updates all of a variable, with this step's gradient."""
    for piece in pieces:
        operation = plan.operations[piece.update]
        if not is_by_every_worker(plan, operation) or any(edge.lag for edge in operation.after):
            return False
        assert isinstance(operation, Local), "updates are local"
        if any(plan.regions[region].kind == "rows" for region in operation.inputs):
            return False
    return True


def _change_refused(name: str) -> OperationError:
    return OperationError(
        f"the script has changed the gradient of {name} after backward, and the engine clips or unscales by the norm "
        "of the gradients as they came (tune the task without clip_norm and loss_scaling)"
    )
