"""The work of a rank, which it receives before it begins: its cells, its records, and the rows that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.peers import Peers, receive_array, receive_value, send_array, send_value
from autosync.loops.record_blocks import Blocks
from autosync.loops.schedules import Cell, LoopSchedule
from autosync.loops.table_rows import RowPlan, TableRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCell:
    """One cell of a rank: `num_records` of its records, with a block that comes from `source` and goes to `target`.

    `is_first` says that no rank uses the block earlier in the epoch, and `is_last` that no rank uses it later.
    """

    rotating: int
    num_records: int
    source: int
    target: int
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """All work of a rank in one epoch. Each cell is cut into `num_pieces` pieces, and ranks merge after each piece."""

    cells: tuple[RankCell, ...]
    num_pieces: int
    records: Records
    fetched: TableRows
    staying: TableRows
    rotating: tuple[TableRows, ...]

    def held_first(self) -> list[TableRows]:
        """The rows that this rank has before the first epoch, except those that it only fetches."""
        return [self.staying, *(self.rotating[cell.rotating] for cell in self.cells if self.rotating and cell.is_first)]

    def held_last(self) -> list[TableRows]:
        """The rows whose latest numbers this rank has after an epoch."""
        return [self.staying, *(self.rotating[cell.rotating] for cell in self.cells if self.rotating and cell.is_last)]


def works_of(
    analysis: LoopAnalysis, schedule: LoopSchedule, blocks: Blocks, rows: RowPlan, records: Records
) -> list[RankWork]:
    """Return the work of every rank."""
    num_pieces = _num_pieces(analysis, blocks)
    works = []
    for rank in range(schedule.num_ranks):
        cells = sorted((cell for cell in schedule.cells if cell.rank == rank), key=lambda cell: cell.step)
        parts = [blocks[rank, cell.rotating] for cell in cells]
        works.append(
            RankWork(
                cells=tuple(_rank_cell(cell, schedule, len(part)) for cell, part in zip(cells, parts, strict=True)),
                num_pieces=num_pieces,
                records=records[np.concatenate(parts)],
                fetched=rows.fetched[rank],
                staying=rows.staying[rank],
                rotating=rows.rotating,
            )
        )
    return works


def _rank_cell(cell: Cell, schedule: LoopSchedule, num_records: int) -> RankCell:
    users = sorted((one.step, one.rank) for one in schedule.cells if one.rotating == cell.rotating)
    place = users.index((cell.step, cell.rank))
    return RankCell(
        rotating=cell.rotating,
        num_records=num_records,
        source=users[place - 1][1],
        target=users[(place + 1) % len(users)][1],
        is_first=place == 0,
        is_last=place == len(users) - 1,
    )


def _num_pieces(analysis: LoopAnalysis, blocks: Blocks) -> int:
    """Return the number of pieces of a cell. It is the same in all cells, because all ranks merge together."""
    tables = [analysis.loop.tables[name] for name in analysis.merged]
    buffered = [table.merge_every for table in tables if table.updates == "buffered"]
    if not buffered:
        return 1
    fullest = max((len(block) for block in blocks.values()), default=0)
    return max(1, -(-fullest // min(buffered)))


def send_work(peers: Peers, work: RankWork, tables: Tables, to: int) -> None:
    """Send a rank its work and the initial numbers of its rows."""
    cells = [
        [cell.rotating, cell.num_records, cell.source, cell.target, cell.is_first, cell.is_last] for cell in work.cells
    ]
    send_value(peers, {"cells": cells, "num_pieces": work.num_pieces, "num_rotating": len(work.rotating)}, to)
    send_value(peers, [[name, field.base.str, field.shape] for name, field in _fields(work.records)], to)
    send_array(peers, work.records, to)
    for rows in (work.fetched, work.staying, *work.rotating):
        send_rows(peers, rows, to)
    for rows in (work.fetched, *work.held_first()):
        send_numbers(peers, rows, tables, to)


def receive_work(peers: Peers, loop: SerialLoop, tables: Tables) -> RankWork:
    """Receive this rank's work from rank 0, and write the initial numbers of its rows into the tables."""
    told = receive_value(peers, 0)
    fields = receive_value(peers, 0)
    record = np.dtype([(name, kind, tuple(shape)) for name, kind, shape in fields], align=True)
    records = receive_array(peers, record, 0)
    fetched, staying, *rotating = [receive_rows(peers, 0) for _ in range(2 + told["num_rotating"])]
    work = RankWork(
        cells=tuple(
            RankCell(rotating=block, num_records=num, source=source, target=target, is_first=first, is_last=last)
            for block, num, source, target, first, last in told["cells"]
        ),
        num_pieces=told["num_pieces"],
        records=records,
        fetched=fetched,
        staying=staying,
        rotating=tuple(rotating),
    )
    for rows in (work.fetched, *work.held_first()):
        receive_numbers(peers, rows, loop, tables, 0)
    return work


def _fields(records: Records) -> list[tuple[str, np.dtype[Any]]]:
    return [(name, records.dtype[name]) for name in records.dtype.names or ()]


def send_rows(peers: Peers, rows: TableRows, to: int) -> None:
    """Send lists of rows."""
    send_value(peers, list(rows), to)
    for one in rows.values():
        send_array(peers, one, to)


def receive_rows(peers: Peers, source: int) -> TableRows:
    """Receive the lists of rows that `send_rows` sent."""
    return {name: receive_array(peers, np.int64, source) for name in receive_value(peers, source)}


def send_numbers(peers: Peers, rows: TableRows, tables: Mapping[str, np.ndarray[Any, Any]], to: int) -> None:
    """Send the numbers of rows. The other rank already knows which rows they are."""
    for name, one in rows.items():
        send_array(peers, tables[name][one], to)


def receive_numbers(peers: Peers, rows: TableRows, loop: SerialLoop, tables: Tables, source: int) -> None:
    """Receive the numbers that `send_numbers` sent, and write them into the rows of tables."""
    for name, one in rows.items():
        numbers = receive_array(peers, loop.tables[name].dtype, source)
        tables[name][one] = numbers.reshape((len(one), *loop.tables[name].shape[1:]))
