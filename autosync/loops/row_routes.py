"""The messages of a schedule in which rows belong to no block: each change travels to the ranks that need it next.

For every record it is known which rows it touches. Before a block of records runs, its rank needs the last change of
each row. If another rank has made it, and this rank has not received it yet, a message brings it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync.loops.declarations import Records
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.record_blocks import Blocks, serial_cells
from autosync.loops.schedules import LoopSchedule
from autosync.loops.table_rows import TableRows

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMessage:
    """Rows that go from one rank to another: after the sender's block `sent_after`, before the receiver's `needed_by`.

    Blocks are counted for each rank. If it `crosses_epochs`, the block that needs it is in the next epoch.
    """

    number: int
    source: int
    target: int
    sent_after: int
    needed_by: int
    crosses_epochs: bool
    rows: TableRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRoutes:
    """The messages of an epoch, and the rows that each rank is the last one to change."""

    messages: tuple[RowMessage, ...]
    last: tuple[TableRows, ...]

    def of_rank(self, rank: int) -> tuple[RowMessage, ...]:
        """Return the messages that a rank sends or receives."""
        return tuple(one for one in self.messages if rank in {one.source, one.target})


@dataclass(frozen=True, slots=True)
class _Touches:
    """The touches of a table's rows by cells, sorted by row and serial position of the cell."""

    rows: Array
    cells: Array
    changes: np.ndarray[Any, np.dtype[np.bool_]]


def plan_routes(analysis: LoopAnalysis, schedule: LoopSchedule, blocks: Blocks, records: Records) -> RowRoutes:
    """Return the messages of a schedule, found from its cells and the rows that their records touch."""
    cells = serial_cells(schedule)
    ranks = np.array([cell.rank for cell in cells], dtype=np.int64)
    places = np.array([sum(one.rank == cell.rank for one in cells[:n]) for n, cell in enumerate(cells)])
    cell_of = np.empty(len(records), dtype=np.int64)
    for position, cell in enumerate(cells):
        cell_of[blocks[cell.rank, cell.rotating]] = position
    names = [name for name in analysis.loop.tables if name in {one.table for one in analysis.dependences}]
    found: dict[tuple[int, int, bool], dict[str, Array]] = {}
    last: list[TableRows] = [{} for _ in range(schedule.num_ranks)]
    for name in names:
        touches = _touches(analysis, name, records, cell_of)
        for source, target, crosses, rows in _changes_to_bring(touches, ranks, len(cells)):
            found.setdefault((source, target, crosses), {})[name] = rows
        changers = touches.changes.nonzero()[0]
        ends = np.append(touches.rows[changers][1:] != touches.rows[changers][:-1], [True] * bool(len(changers)))
        enders = changers[ends.astype(bool)]
        for rank in range(schedule.num_ranks):
            last[rank][name] = touches.rows[enders[ranks[touches.cells[enders]] == rank]]
    messages = tuple(
        RowMessage(
            number=number,
            source=int(ranks[source]),
            target=int(ranks[target]),
            sent_after=int(places[source]),
            needed_by=int(places[target]),
            crosses_epochs=crosses,
            rows=found[source, target, crosses],
        )
        for number, (source, target, crosses) in enumerate(sorted(found))
    )
    return RowRoutes(messages=messages, last=tuple(last))


def _touches(analysis: LoopAnalysis, table: str, records: Records, cell_of: Array) -> _Touches:
    rows, cells, changes = [], [], []
    for access in analysis.body.accesses:
        if access.table == table:
            values = access.row.values(records)
            rows.append(values.ravel())
            cells.append(np.repeat(cell_of, values.size // max(1, len(records))))
            changes.append(np.full(values.size, access.changes))
    pairs = np.stack([np.concatenate(rows), np.concatenate(cells)], axis=1)
    unique, places = np.unique(pairs, axis=0, return_inverse=True)
    is_change = np.zeros(len(unique), dtype=bool)
    np.logical_or.at(is_change, places.ravel(), np.concatenate(changes))
    return _Touches(unique[:, 0], unique[:, 1], is_change)


def _changes_to_bring(touches: _Touches, ranks: Array, num_cells: int) -> Iterator[tuple[int, int, bool, Array]]:
    """Yield the rows to bring from one cell to another, and whether the second one is in the next epoch."""
    rows, cells = touches.rows, touches.cells
    ranks_here = ranks[cells]
    writers = _previous(rows, cells, num_cells, counts=touches.changes)
    order = np.lexsort((cells, ranks_here, rows))
    own = np.empty_like(cells)
    groups = rows[order] * len(ranks) + ranks_here[order]
    own[order] = _previous(groups, cells[order], num_cells, counts=np.ones(len(cells), dtype=bool))
    has_writer = writers > -2 * num_cells
    source = writers % num_cells
    is_needed = has_writer & (ranks[source] != ranks_here) & (own < writers)
    crosses = writers < 0
    key = np.stack([source, cells, crosses], axis=1)[is_needed]
    if not len(key):
        return
    unique, places = np.unique(key, axis=0, return_inverse=True)
    there = rows[is_needed]
    for number, (one, other, is_next) in enumerate(unique):
        yield int(one), int(other), bool(is_next), np.unique(there[places.ravel() == number])


def _previous(groups: Array, cells: Array, num_cells: int, *, counts: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
    """Return for each touch the last counted cell before it in its group: in this epoch, or in the one before.

    Touches are sorted by group, then by cell. A cell of the epoch before is less by `num_cells`. Where the group has no
    counted cell, the value is below `-2 * num_cells`.
    """
    numbers = np.cumsum(np.append([0], groups[1:] != groups[:-1])) if len(groups) else groups
    keys = numbers * num_cells + cells
    counted = keys[counts]
    found = np.full(len(cells), -3 * num_cells, dtype=np.int64)
    for ends, shift in (((numbers + 1) * num_cells, -num_cells), (keys, 0)):
        places = np.searchsorted(counted, ends, side="left") - 1
        earlier = counted[np.maximum(places, 0)] if len(counted) else np.full(len(cells), -1)
        is_here = (places >= 0) & (earlier // num_cells == numbers)
        found[is_here] = earlier[is_here] % num_cells + shift
    return found
