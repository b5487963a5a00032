"""Local operations: work within one rank, on the tensors behind a plan's regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from autosync.plan.shards import own_shard
from autosync.plan.types import Local, Plan, RegionKind
from autosync.runtime.local.encoding import Encoding
from autosync.runtime.local.engine_updates import norm_awaited
from autosync.runtime.local.factors import rebuild
from autosync.runtime.local.optimizer_facts import StepScale
from autosync.runtime.local.outer_optimizer import Outer
from autosync.runtime.local.sparse_rows import Rows, is_no_gradient, merge_rows
from autosync.runtime.local.stale_parameters import incoming, lag_of
from autosync.runtime.memory.early_division import divides_early
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.travelling import Travelling

_ROW = 4096
"""The number of values that are summed together in float32: see `sum_of_squares`."""


class Update(Protocol):
    """One update operation of the engine: runs the optimizer on this rank's share."""

    def scale(self, iteration: int) -> StepScale:
        """Return how the script has scaled and clipped an iteration's gradients."""

    def run(self, iteration: int, scale: float) -> None:
        """Update, after multiplying the gradients by `scale`, which combines unscaling and clipping."""


class Locals:
    """Does a plan's local operations on one rank. `updates` are the engine's updates, by position in the plan.

    With `travelling`, parts may stay as they are, and an operation of which all parts stay does not take place.
    """

    def __init__(
        self,
        plan: Plan,
        memory: Memory,
        *,
        rank: int,
        updates: Mapping[int, Update],
        travelling: Travelling | None = None,
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = rank
        self._updates = updates
        self._travelling = travelling
        self._norms = {index: norm_awaited(plan, index) for index in updates}
        self._encoding = Encoding(plan, memory, rank=rank)
        self._outer = Outer(plan, memory, rank=rank)
        self._copies = self._begin_copies()
        self._work: Mapping[str, Callable[[int, Local, int], None]] = {
            "average": self._average,
            "copy": self._copy,
            "decode": lambda _, operation, iteration: self._encoding.decode(operation, iteration),
            "encode": lambda _, operation, iteration: self._encoding.encode(operation, iteration),
            "merge_rows": self._merge_rows,
            "norm": self._norm,
            "outer": lambda _, operation, __: self._outer.step(operation),
            "project": lambda _, operation, iteration: self._encoding.project(operation, iteration),
            "read_rows": self._read_rows,
            "rebuild": self._rebuild,
            "take": self._take,
            "update": self._update,
            "write_rows": self._write_rows,
        }

    def _begin_copies(self) -> dict[tuple[RegionKind, int], torch.Tensor]:
        """Create this rank's copies of parameters: a stale server's own, and the values at the last average."""
        found: dict[tuple[RegionKind, int], torch.Tensor] = {}
        for operation in self._plan.operations:
            if isinstance(operation, Local) and any(self._rank in group for group in operation.groups):
                regions = [self._plan.regions[index] for index in operation.outputs]
                for kind, part in {(one.kind, one.part) for one in regions if one.kind in ("master", "anchor")}:
                    if (kind, part) not in found:
                        self._memory.begin_copy(kind, part)
                        found[kind, part] = self._memory.held_part(kind, part)
        return found

    def kept(self, step: int) -> Iterator[Held]:
        """Yield the state that outlives step `step`, except parameters and optimizer state, without copying."""
        for (kind, part), values in self._copies.items():
            whole = self._plan.parts[part]
            yield Held(kind, Place.of(whole, 0, whole.num_elements), values.view(-1))
        yield from self._encoding.kept()
        yield from self._outer.kept()
        yield from incoming(self._plan, self._memory, rank=self._rank, step=step)

    def kept_factors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield PowerSGD's right factors, by the position of their part. The tensors are not copies."""
        yield from self._encoding.kept_factors()

    @torch.no_grad()
    def run(self, index: int, iteration: int) -> None:
        """Do one operation (by its position in the plan). Only one thread calls it."""
        operation = self._plan.operations[index]
        assert isinstance(operation, Local), "transfers are not local"
        resting = self._travelling.resting(index, iteration) if self._travelling is not None else None
        if not resting:
            self._work[operation.kind](index, operation, iteration)
            return
        moving = [one for one in operation.inputs if self._plan.regions[one].part not in resting]
        if len(moving) == len(operation.inputs):
            self._work[operation.kind](index, operation, iteration)
        elif moving and not divides_early(self._plan, operation):
            assert operation.kind == "average", "no other operation takes place for some of its parts"
            torch._foreach_div_(self._memory.views(moving, iteration), self._plan.num_workers)

    def _mine(self, operation: Local, buffer: torch.Tensor) -> torch.Tensor:
        """Return the elements of a buffer that this rank works on: all of them, or its shard."""
        return buffer[own_shard(operation, self._rank, len(buffer))]

    def _average(self, _: int, operation: Local, iteration: int) -> None:
        if divides_early(self._plan, operation):
            return
        self._mine(operation, self._memory.view(operation.inputs, iteration)).div_(self._plan.num_workers)
        if self._plan.regions[operation.outputs[0]].kind == "param":
            self._memory.store(operation.outputs)

    def _norm(self, _: int, operation: Local, iteration: int) -> None:
        values = self._mine(operation, self._memory.view(operation.inputs, iteration))
        self._memory.view(operation.outputs, iteration).add_(sum_of_squares(values))

    def _update(self, index: int, _: Local, iteration: int) -> None:
        self._updates[index].run(iteration, self._coefficient(index, iteration))

    def _coefficient(self, index: int, iteration: int) -> float:
        """Return the factor that unscales and clips gradients; clipping uses the norm that the update waits for."""
        norm, clip_norm = self._norms[index], self._plan.clip_norm
        scale = self._updates[index].scale(iteration)
        if norm is None or clip_norm is None or not scale.clips:
            return scale.inverse
        sum_of_squares = float(self._memory.view((norm,), iteration)) * scale.inverse**2
        return scale.inverse * clip_coefficient(sum_of_squares, clip_norm)

    def _contributions(self, region: int, iteration: int) -> list[Any]:
        """Return the contributions of all members of a gather, or only this rank's own if there was no gather."""
        found = self._memory.get(region, iteration)
        return found if isinstance(found, list) else [found]

    def _merge_rows(self, _: int, operation: Local, iteration: int) -> None:
        contributions = self._contributions(operation.inputs[0], iteration)
        self._memory.put(operation.outputs[0], iteration, merge_rows(contributions, self._plan.num_workers))

    def _read_rows(self, _: int, operation: Local, iteration: int) -> None:
        rows, source = operation.inputs
        found = self._memory.get(rows, iteration)
        if is_no_gradient(found):
            self._memory.put(operation.outputs[0], iteration, found)
            return
        indices = found.indices
        values = self._memory.held_part(self._plan.regions[source].kind, self._plan.regions[source].part)[indices]
        self._memory.put(operation.outputs[0], iteration, Rows(indices, values))

    def _write_rows(self, _: int, operation: Local, iteration: int) -> None:
        sent = iteration - lag_of(operation)
        if sent < 0:
            return
        rows = self._memory.get(operation.inputs[0], sent)
        if is_no_gradient(rows):
            return
        indices, values = rows
        target = self._memory.parameter_part(self._plan.regions[operation.outputs[0]].part)
        target.index_copy_(0, indices, values)

    def _rebuild(self, _: int, operation: Local, iteration: int) -> None:
        contributions = self._contributions(operation.inputs[0], iteration)
        gradient = self._memory.view(operation.outputs, iteration)
        if rebuild(contributions, self._plan.num_workers, gradient):
            self._memory.mark_used(operation.outputs[0], gradient)

    def _copy(self, _: int, operation: Local, iteration: int) -> None:
        self._memory.view(operation.outputs, iteration).copy_(self._memory.view(operation.inputs, iteration))

    def _take(self, _: int, operation: Local, iteration: int) -> None:
        sent = iteration - lag_of(operation)
        if sent >= 0:
            self._memory.view(operation.outputs).copy_(self._memory.view(operation.inputs, sent))
            self._memory.store(operation.outputs)


def sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares in float64, because squares of large float32 numbers do not fit into float32.

    On a CPU torch takes 35 times as long for this in float64 as for norms in float32. So the norms of short rows are
    computed in float32, since short sums round little, and their squares are summed in float64. If a row's squares are
    too large for float32, everything is computed in float64.
    """
    if values.dtype == torch.float32 and values.device.type == "cpu":
        flat = values.reshape(-1)
        in_rows = len(flat) - len(flat) % _ROW
        norms = torch.linalg.vector_norm(flat[:in_rows].view(-1, _ROW), dim=1)
        rest = torch.linalg.vector_norm(flat[in_rows:], dtype=torch.float64)
        found: torch.Tensor = norms.double().square().sum() + rest.square()
        if torch.isfinite(found):
            return found
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.square()


def clip_coefficient(sum_of_squares: float, clip_norm: float) -> float:
    """Return the factor by which torch's `clip_grad_norm_` multiplies gradients. As there, NaN stays NaN."""
    coefficient = clip_norm / (math.sqrt(sum_of_squares) + 1e-6)
    return min(coefficient, 1.0)
