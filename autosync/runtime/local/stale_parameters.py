"""Parameters and rows that a stale server has sent and the workers have not taken yet, by their age in steps.

At the beginning of step n, a message of staleness s has s of them on the way: those sent 1 to s steps ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from autosync.plan.types import Local, LocalKind, Plan
from autosync.runtime.local.sparse_rows import Rows
from autosync.runtime.memory.kept_state import Held, Place
from autosync.runtime.memory.regions import Memory


class RowsPlace(NamedTuple):
    """Rows of a part (by position) that were sent `age` steps ago: they are the content of a region in an iteration."""

    part: int
    age: int
    region: int
    iteration: int


def incoming(plan: Plan, memory: Memory, *, rank: int, step: int) -> Iterator[Held]:
    """Yield the parameters that wait to be taken after `step` steps. The tensors are not copies."""
    for operation, age in _awaited(plan, "take", rank=rank, step=step):
        for index in operation.inputs:
            region = plan.regions[index]
            place = Place.of(plan.parts[region.part], region.start, region.stop)
            yield Held(f"incoming {age}", place, memory.view((index,), step - age))


def rows_on_the_way(plan: Plan, *, rank: int, step: int) -> Iterator[RowsPlace]:
    """Yield the places of rows that wait to be written after `step` steps."""
    for operation, age in _awaited(plan, "write_rows", rank=rank, step=step):
        (index,) = operation.inputs
        yield RowsPlace(plan.regions[index].part, age, index, step - age)


def no_rows(plan: Plan, part: int) -> Rows:
    """Return an empty set of rows of a part."""
    dtype = getattr(torch, plan.parts[part].variable.dtype)
    return Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, plan.parts[part].shape[1], dtype=dtype))


def lag_of(operation: Local) -> int:
    """Return how many iterations ago the input of an operation was sent."""
    return max((edge.lag for edge in operation.after if edge.event == "operation"), default=0)


def _awaited(plan: Plan, kind: LocalKind, *, rank: int, step: int) -> Iterator[tuple[Local, int]]:
    for operation in plan.operations:
        if isinstance(operation, Local) and operation.kind == kind and any(rank in one for one in operation.groups):
            for age in range(1, min(lag_of(operation), step) + 1):
                yield operation, age
