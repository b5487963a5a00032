"""Local operations: work within this rank, on the tensors behind a plan's regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Local, Plan
from autosync.runtime.factors import rebuild
from autosync.runtime.memory import Memory
from autosync.runtime.sparse import Rows, merge_rows


class Update(Protocol):
    """One update operation of the engine's: the optimizer on what this rank has of it."""

    def run(self, iteration: int, scale: float) -> None:
        """Update; gradients are multiplied by `scale` first (what clipping takes off)."""


class Locals:
    """Does a plan's local operations on one rank. `updates` are those of the engine's, by position in the plan."""

    def __init__(self, plan: Plan, memory: Memory, *, rank: int, updates: Mapping[int, Update]) -> None:
        self._plan = plan
        self._memory = memory
        self._rank = rank
        self._updates = updates
        self._norms = {index: _norm_awaited(plan, index) for index in updates}
        self._work: Mapping[str, Callable[[int, Local, int], None]] = {
            "average": self._average,
            "merge_rows": self._merge_rows,
            "norm": self._norm,
            "read_rows": self._read_rows,
            "rebuild": self._rebuild,
            "update": self._update,
            "write_rows": self._write_rows,
        }

    @torch.no_grad()
    def run(self, index: int, iteration: int) -> None:
        """Do one operation (by its position in the plan). One thread calls it."""
        operation = self._plan.operations[index]
        assert isinstance(operation, Local), "transfers are not local"
        self._work[operation.kind](index, operation, iteration)

    def _mine(self, operation: Local, buffer: torch.Tensor) -> torch.Tensor:
        """What the rank works on of a buffer: all of it, or its shard."""
        if not operation.sharded:
            return buffer
        group = next(group for group in operation.groups if self._rank in group)
        bounds = chunk_bounds(len(buffer), len(group))
        position = group.index(self._rank)
        return buffer[bounds[position] : bounds[position + 1]]

    def _average(self, _: int, operation: Local, __: int) -> None:
        self._mine(operation, self._memory.view(operation.inputs)).div_(self._plan.num_workers)

    def _norm(self, _: int, operation: Local, iteration: int) -> None:
        values = self._mine(operation, self._memory.view(operation.inputs))
        # In float64: squares of what float32 can say do not fit into float32.
        norm = torch.linalg.vector_norm(values, dtype=torch.float64)
        self._memory.view(operation.outputs, iteration).add_(norm.square().cpu())

    def _update(self, index: int, _: Local, iteration: int) -> None:
        self._updates[index].run(iteration, self._coefficient(index, iteration))

    def _coefficient(self, index: int, iteration: int) -> float:
        """What clipping multiplies gradients by: it follows from the norm that the update waits for."""
        norm, clip_norm = self._norms[index], self._plan.clip_norm
        if norm is None or clip_norm is None:
            return 1.0
        return clip_coefficient(float(self._memory.view((norm,), iteration)), clip_norm)

    def _contributions(self, region: int, iteration: int) -> list[Any]:
        """What all members of a gather brought; where there was none but this rank, its own."""
        found = self._memory.get(region, iteration)
        return found if isinstance(found, list) else [found]

    def _merge_rows(self, _: int, operation: Local, iteration: int) -> None:
        contributions = self._contributions(operation.inputs[0], iteration)
        self._memory.put(operation.outputs[0], iteration, merge_rows(contributions, self._plan.num_workers))

    def _read_rows(self, _: int, operation: Local, iteration: int) -> None:
        rows, source = operation.inputs
        indices = self._memory.get(rows, iteration).indices
        values = self._memory.parameter_part(self._plan.regions[source].part)[indices]
        self._memory.put(operation.outputs[0], iteration, Rows(indices, values))

    def _write_rows(self, _: int, operation: Local, iteration: int) -> None:
        indices, values = self._memory.get(operation.inputs[0], iteration)
        target = self._memory.parameter_part(self._plan.regions[operation.outputs[0]].part)
        target.index_copy_(0, indices, values)

    def _rebuild(self, _: int, operation: Local, iteration: int) -> None:
        contributions = self._contributions(operation.inputs[0], iteration)
        gradient = self._memory.view(operation.outputs)
        rebuild(contributions, self._plan.num_workers, gradient)


def clip_coefficient(sum_of_squares: float, clip_norm: float) -> float:
    """What torch's `clip_grad_norm_` multiplies gradients by. What is no number stays so, as there."""
    coefficient = clip_norm / (math.sqrt(sum_of_squares) + 1e-6)
    return min(coefficient, 1.0)


def _norm_awaited(plan: Plan, index: int) -> int | None:
    """The region of the norm that an update waits for, if it does."""
    for edge in plan.operations[index].after:
        if edge.event == "operation":
            awaited = plan.operations[edge.target]
            region = awaited.outputs[0] if isinstance(awaited, Local) else awaited.regions[0]
            if plan.regions[region].kind == "norm":
                return region
    return None
