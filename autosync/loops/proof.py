"""Proves a schedule on the records, without the code that made the schedule.

The proof checks these rules:

- Every record is in exactly one block.
- In each time step, no rank touches a row that another rank changes.
- Every changed row belongs to one block, and only one rank has that block at a time. So ranks need not wait for each
  other's time steps. Skewed schedules have no such blocks: there, messages bring each change to the next rank.
- If the order is given, a record that changes a row keeps its place among the records that touch the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync.errors import OperationError
from autosync.loops.declarations import Records
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.record_blocks import Blocks, serial_cells
from autosync.loops.schedules import LoopSchedule

Array = np.ndarray[Any, Any]


class ScheduleConflictError(OperationError):
    """Under a schedule, two ranks would touch a row that one of them changes. This is a bug in autosync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProof:
    """The check of a table in one time step: the number of rows that each rank touches."""

    step: int
    table: str
    num_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleProof:
    """A proven schedule: its time steps, and the records of each rank."""

    steps: tuple[StepProof, ...]
    num_records: tuple[int, ...]
    fullest: float
    """The records of the fullest block of each time step over the mean; 1 if ranks always have equally many."""

    def __str__(self) -> str:
        if not self.steps:
            return "no row changes that ranks could share"
        num_steps = len({one.step for one in self.steps})
        tables = ", ".join(dict.fromkeys(one.table for one in self.steps)) or "no table"
        return f"in each of {num_steps} time steps, the ranks' row sets of {tables} are disjoint"


@dataclass(frozen=True, slots=True)
class _Touches:
    """All touches of rows: for each, the row, the position of its record, and whether it is a change."""

    rows: Array
    positions: Array
    changes: Array


def prove(analysis: LoopAnalysis, schedule: LoopSchedule, blocks: Blocks, records: Records) -> ScheduleProof:
    """Return the proof of a schedule. Raise ScheduleConflictError if it breaks a rule."""
    cells = serial_cells(schedule)
    cell_of = np.full(len(records), -1, dtype=np.int64)
    num_placed = 0
    for position, cell in enumerate(cells):
        indices = blocks[cell.rank, cell.rotating]
        cell_of[indices] = position
        num_placed += len(indices)
    if num_placed != len(records) or (cell_of < 0).any():
        raise ScheduleConflictError("a record is in no block or in two")
    steps = np.array([cell.step for cell in cells])
    ranks = np.array([cell.rank for cell in cells])
    rotating = np.array([cell.rotating for cell in cells])
    _check_rotation(schedule)
    proofs: list[StepProof] = []
    for table in analysis.loop.tables:
        is_ordered = analysis.loop.tables[table].updates == "ordered" and table not in schedule.served
        if table not in analysis.changed or not is_ordered:
            continue
        touches = _touches(analysis, table, records)
        where = cell_of[touches.positions]
        proofs += _disjoint(table, touches, steps[where], ranks[where], schedule)
        if schedule.kind != "skewed":
            _check_owners(table, touches, ranks[where], rotating[where])
        if analysis.loop.order == "given":
            _check_order(table, touches, where)
    return ScheduleProof(
        steps=tuple(proofs),
        num_records=tuple(int(n) for n in np.bincount(ranks[cell_of], minlength=schedule.num_ranks)),
        fullest=_fullest(schedule, blocks, len(records)),
    )


def _check_rotation(schedule: LoopSchedule) -> None:
    """Check that in each time step every rank has one block and no two ranks have the same."""
    seen: set[tuple[int, str, int]] = set()
    for cell in schedule.cells:
        keys = {(cell.step, "rank", cell.rank)}
        if schedule.rotate is not None:
            keys.add((cell.step, "block", cell.rotating))
        if keys & seen:
            raise ScheduleConflictError(f"time step {cell.step}: rank {cell.rank} has no block of its own")
        seen |= keys


def _touches(analysis: LoopAnalysis, table: str, records: Records) -> _Touches:
    rows, positions, changes = [], [], []
    for access in analysis.body.accesses:
        if access.table == table:
            values = access.row.values(records)
            per_record = values.size // max(1, len(records))
            rows.append(values.ravel())
            positions.append(np.repeat(np.arange(len(records)), per_record))
            changes.append(np.full(values.size, access.changes))
    return _Touches(np.concatenate(rows), np.concatenate(positions), np.concatenate(changes))


def _disjoint(table: str, touches: _Touches, steps: Array, ranks: Array, schedule: LoopSchedule) -> Iterator[StepProof]:
    """Check for each time step that no rank touches a row that another rank changes."""
    for step in range(schedule.num_steps):
        here = steps == step
        touched = np.unique(np.stack([touches.rows[here], ranks[here]]), axis=1)
        shared, counts = np.unique(touched[0], return_counts=True)
        conflicts = np.intersect1d(shared[counts > 1], touches.rows[here & touches.changes])
        if len(conflicts):
            words = f"time step {step}: {len(conflicts)} rows of {table} are with two ranks, row {conflicts[0]} first"
            raise ScheduleConflictError(words)
        num_rows = np.bincount(touched[1], minlength=schedule.num_ranks)
        yield StepProof(step=step, table=table, num_rows=tuple(int(n) for n in num_rows))


def _check_owners(table: str, touches: _Touches, ranks: Array, rotating: Array) -> None:
    """Check that every changed row is always on the same rank, or always in the same rotating block."""
    changed = np.isin(touches.rows, touches.rows[touches.changes])
    moves = _varying(touches.rows[changed], ranks[changed])
    roams = _varying(touches.rows[changed], rotating[changed])
    both = np.intersect1d(moves, roams)
    if len(both):
        raise ScheduleConflictError(f"row {both[0]} of {table} belongs to several ranks and several blocks")


def _varying(rows: Array, owners: Array) -> Array:
    """Return the rows that have more than one owner."""
    pairs = np.unique(np.stack([rows, owners]), axis=1)
    found, counts = np.unique(pairs[0], return_counts=True)
    return found[counts > 1]


def _check_order(table: str, touches: _Touches, where: Array) -> None:
    """Check that a record that changes a row keeps its place among all records that touch the row."""
    order = np.lexsort((touches.positions, touches.rows))
    rows, changes = touches.rows[order], touches.changes[order]
    if not len(rows):
        return
    # A number that ascends with the row, and within a row with the cell. So a running maximum starts anew at each row.
    first = np.cumsum(np.append([0], rows[1:] != rows[:-1])) * (int(where.max()) + 1)
    place = first + where[order]
    latest, latest_change = np.maximum.accumulate(place), np.maximum.accumulate(np.where(changes, place, first))
    is_late = (place[1:] < latest_change[:-1]) | (changes[1:] & (place[1:] < latest[:-1]))
    if is_late.any():
        raise ScheduleConflictError(f"records that share a row of {table} change places")


def _fullest(schedule: LoopSchedule, blocks: Blocks, num_records: int) -> float:
    most = [0] * schedule.num_steps
    for cell in schedule.cells:
        most[cell.step] = max(most[cell.step], len(blocks[cell.rank, cell.rotating]))
    return sum(most) * schedule.num_ranks / num_records if num_records else 1.0
