"""Cuts records into balanced blocks. Within a block, records keep their given order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autosync.loops.declarations import Records
from autosync.loops.schedules import Cell, LoopSchedule

Indices = np.ndarray[Any, np.dtype[np.int64]]
Blocks = Mapping[tuple[int, int], Indices]
"""The positions of the records of each block, by rank and rotating block, ascending."""


def balanced_cuts(values: Indices, num_blocks: int) -> tuple[int, ...]:
    """Return the first value of each block but the first. The cuts keep the fullest block as small as possible."""
    distinct, counts = np.unique(values, return_counts=True)
    if not len(distinct):
        return (0,) * (num_blocks - 1)
    sums = np.cumsum(counts)
    low, high = int(max(counts.max(), -(-sums[-1] // num_blocks))), int(sums[-1])
    while low < high:
        middle = (low + high) // 2
        if _ends(sums, num_blocks, middle)[-1] == len(distinct):
            high = middle
        else:
            low = middle + 1
    beyond = int(distinct[-1]) + 1
    ends = _ends(sums, num_blocks, low)[:-1]
    return tuple(int(distinct[end]) if end < len(distinct) else beyond for end in ends)


def _ends(sums: Indices, num_blocks: int, limit: int) -> list[int]:
    """Return the ends of blocks that each take as many values as the limit of records allows."""
    ends, taken = [], 0
    for _ in range(num_blocks):
        end = int(np.searchsorted(sums, taken + limit, side="right"))
        taken = int(sums[end - 1]) if end else 0
        ends.append(end)
    return ends


def block_of(values: Indices, cuts: tuple[int, ...]) -> Indices:
    """Return the block of each value."""
    return np.searchsorted(np.asarray(cuts, dtype=np.int64), values, side="right").astype(np.int64)


def split(schedule: LoopSchedule, records: Records) -> dict[tuple[int, int], Indices]:
    """Return the blocks of a schedule."""
    if schedule.kind == "serial":
        everything = np.arange(len(records), dtype=np.int64)
        return {(rank, 0): everything if rank == 0 else everything[:0] for rank in range(schedule.num_ranks)}
    if schedule.stay is None:
        parts = np.array_split(np.arange(len(records), dtype=np.int64), schedule.num_ranks)
        return {(rank, 0): part for rank, part in enumerate(parts)}
    rank = block_of(schedule.stay.values(records), schedule.stay_cuts)
    rotating = np.zeros_like(rank)
    if schedule.rotate is not None:
        rotating = block_of(schedule.rotate.values(records), schedule.rotate_cuts)
    code = rank * schedule.num_rotating + rotating
    order = np.argsort(code, kind="stable").astype(np.int64)
    ends = np.searchsorted(code[order], np.arange(schedule.num_ranks * schedule.num_rotating + 1))
    return {
        divmod(block, schedule.num_rotating): order[ends[block] : ends[block + 1]] for block in range(len(ends) - 1)
    }


def serial_cells(schedule: LoopSchedule) -> list[Cell]:
    """Return the cells by time step, then by rank. In this serial order they give the schedule's result."""
    return sorted(schedule.cells, key=lambda cell: (cell.step, cell.rank))


def serial_order(schedule: LoopSchedule, blocks: Blocks) -> Indices:
    """Return the positions of the records in the serial order that gives the schedule's result."""
    parts = [blocks[cell.rank, cell.rotating] for cell in serial_cells(schedule)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
