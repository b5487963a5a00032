"""The work of a rank, which it receives before it begins: its cells, its records, and the rows that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.peers import Peers, receive_array, receive_value, send_array, send_value
from autosync.loops.record_blocks import Blocks
from autosync.loops.row_routes import RowMessage, plan_routes
from autosync.loops.schedules import Cell, LoopSchedule
from autosync.loops.served_rows import ServerPlan, plan_servers
from autosync.loops.shards import receive_records, send_records
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
    """All work of a rank in one epoch. Each cell is cut into `num_pieces` pieces, and ranks merge after each piece.

    `summed` are the commutative tables, of which each rank has a sum of its own. `changes_records` says that the loop
    assigns fields of its records.
    """

    cells: tuple[RankCell, ...]
    num_pieces: int
    records: Records
    fetched: TableRows
    staying: TableRows
    rotating: tuple[TableRows, ...]
    messages: tuple[RowMessage, ...] = ()
    servers: ServerPlan = field(default_factory=ServerPlan)
    summed: tuple[str, ...] = ()
    changes_records: bool = False

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
    fullest = max((len(block) for block in blocks.values()), default=0)
    num_pieces = max(1, -(-fullest // schedule.merge_every)) if schedule.served else 1
    is_shared = schedule.kind != "serial"
    summed = tuple(name for name in analysis.merged if name not in analysis.buffered and is_shared)
    routes = plan_routes(analysis, schedule, blocks, records) if schedule.kind == "skewed" else None
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
                staying=rows.staying[rank] if routes is None else routes.last[rank],
                rotating=rows.rotating,
                messages=() if routes is None else routes.of_rank(rank),
                summed=summed,
                changes_records=bool(analysis.body.written_fields),
            )
        )
    pieces = (piece for work in works for piece in pieces_of(work))
    servers = plan_servers(schedule.served, analysis.body.accesses, pieces, schedule.num_ranks, schedule.staleness)
    return [replace(work, servers=servers) for work in works]


def pieces_of(work: RankWork) -> Iterator[Records]:
    """Yield the records of a rank between two merges, in the order in which it runs them."""
    begin = 0
    for cell in work.cells:
        yield from np.array_split(work.records[begin : begin + cell.num_records], work.num_pieces)
        begin += cell.num_records


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


def send_work(peers: Peers, work: RankWork, tables: Tables, to: int, *, keeps_records: bool) -> None:
    """Send a rank its work and the initial numbers of its rows."""
    cells = [
        [cell.rotating, cell.num_records, cell.source, cell.target, cell.is_first, cell.is_last] for cell in work.cells
    ]
    told = {
        "cells": cells,
        "num_pieces": work.num_pieces,
        "num_rotating": len(work.rotating),
        "cuts": {name: list(cuts) for name, cuts in work.servers.cuts.items()},
        "staleness": work.servers.staleness,
        "summed": list(work.summed),
        "changes_records": work.changes_records,
        "messages": [
            [one.number, one.source, one.target, one.sent_after, one.needed_by, one.crosses_epochs]
            for one in work.messages
        ],
    }
    send_value(peers, told, to)
    send_records(peers, work.records, to, keeps=keeps_records)
    for rows in (work.fetched, work.staying, *work.rotating, *(one.rows for one in work.messages)):
        send_rows(peers, rows, to)
    for rows in (work.fetched, *work.held_first()):
        send_numbers(peers, rows, tables, to)


def receive_work(peers: Peers, loop: SerialLoop, tables: Tables, *, shards: str) -> RankWork:
    """Receive this rank's work from rank 0, and write the initial numbers of its rows into the tables.

    The records go into a file of the folder `shards` if it has a name.
    """
    told = receive_value(peers, 0)
    records = receive_records(peers, shards, are_changed=told["changes_records"])
    fetched, staying, *rotating = [receive_rows(peers, 0) for _ in range(2 + told["num_rotating"])]
    messages = tuple(_message(fields, receive_rows(peers, 0)) for fields in told["messages"])
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
        messages=messages,
        servers=ServerPlan(
            cuts={name: tuple(cuts) for name, cuts in told["cuts"].items()}, staleness=told["staleness"]
        ),
        summed=tuple(told["summed"]),
        changes_records=told["changes_records"],
    )
    for rows in (work.fetched, *work.held_first()):
        receive_numbers(peers, rows, loop, tables, 0)
    return work


def _message(fields: list[Any], rows: TableRows) -> RowMessage:
    number, source, target, sent_after, needed_by, crosses_epochs = fields
    return RowMessage(
        number=number,
        source=source,
        target=target,
        sent_after=sent_after,
        needed_by=needed_by,
        crosses_epochs=crosses_epochs,
        rows=rows,
    )


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
    for name, numbers in received_numbers(peers, rows, loop, source).items():
        tables[name][rows[name]] = numbers


def received_numbers(peers: Peers, rows: TableRows, loop: SerialLoop, source: int) -> Tables:
    """Receive the numbers that `send_numbers` sent."""
    found = {}
    for name, one in rows.items():
        numbers = receive_array(peers, loop.tables[name].dtype, source)
        found[name] = numbers.reshape((len(one), *loop.tables[name].shape[1:]))
    return found


def rows_of(tables: Tables, rows: TableRows) -> Tables:
    """Return the numbers of rows."""
    return {name: tables[name][one] for name, one in rows.items()}
