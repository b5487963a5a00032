"""Runs the epochs of one rank: its cells in order, with blocks that arrive and leave.

A rank sends a rotating block on as soon as its records are done, and receives the next block while this one runs. A
rank's arrays have the whole shape of a table, but only the rows that it needs are filled. So the user's subscripts stay
valid, and memory that is never touched costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autosync.loops.body_reader import read_body
from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.load import loop_code
from autosync.loops.merging import TableSums
from autosync.loops.passes import RecordPass, record_pass
from autosync.loops.peers import Peers, Pending, receive_array, send_array
from autosync.loops.rank_work import RankCell, RankWork, receive_numbers, send_numbers
from autosync.loops.routing import RowRouter
from autosync.loops.schedules import ScheduleChoice
from autosync.loops.servers import TableServers
from autosync.loops.table_rows import TableRows

_BLOCK_TAG = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The number of epochs, the seed of the initial tables, and whether numba may compile the function.

    `dilation` is for measurements of many ranks on few cores: a rank sleeps until its compute has taken `dilation`
    times the processor time that it used. With `shards`, each rank keeps its records in a file of this folder.
    """

    num_epochs: int = 1
    seed: int = 0
    compiled: bool = True
    dilation: float = 1.0
    choice: ScheduleChoice = field(default_factory=ScheduleChoice)
    shards: str = ""


@dataclass(slots=True, kw_only=True)
class RankTimes:
    """The parts of a rank's time in its epochs, and the bytes that it sent to other ranks.

    A rank computes, waits for rotating blocks, or exchanges changes with servers. `epoch_seconds` is the whole time.
    """

    rank: int
    num_records: int = 0
    epoch_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    merge_seconds: float = 0.0
    sent_bytes: int = 0


class RankRun:
    """Runs a rank's epochs. `results` holds the true tables at rank 0, and on other ranks their own arrays."""

    def __init__(
        self,
        peers: Peers,
        loop: SerialLoop,
        work: RankWork,
        results: Tables,
        settings: LoopSettings,
        *,
        works: Sequence[RankWork] = (),
    ) -> None:
        self._peers = peers
        self._loop = loop
        self._work = work
        self._results = results
        own = {*work.servers.tables, *work.summed} if peers.num_ranks > 1 else set()
        self._tables = {name: np.zeros_like(one) if name in own else one for name, one in results.items()}
        body = read_body(loop.function, work.records.dtype, loop.tables)
        self._sums = TableSums(peers, loop, body.accesses, self._tables, results, work=work, works=works)
        self._router = RowRouter(peers, work.messages, self._tables)
        self._servers = TableServers(peers, loop, body.accesses, self._tables, results, work=work)
        self.way: RecordPass = record_pass(
            loop, work.records.dtype, compiled=settings.compiled, checks_bounds=body.has_inner_subscripts
        )
        self._dilation = settings.dilation
        self.times = RankTimes(rank=peers.rank, num_records=len(work.records))
        self._sends: list[tuple[Pending, np.ndarray]] = []
        self._sent_before: list[tuple[Pending, np.ndarray]] = []

    def epoch(self, *, is_first: bool) -> None:
        """Run all cells once."""
        begun = time.perf_counter()
        begin = 0
        arriving: _Arrival | None = None
        if self._servers.is_needed:
            self._servers.begin_epoch()
        for position, cell in enumerate(self._work.cells):
            if position == 0:
                arriving = self._expect(cell, is_first=is_first)
                self._router.expect(position, is_first=is_first)
            self._take(arriving, position)
            if position + 1 < len(self._work.cells):
                arriving = self._expect(self._work.cells[position + 1], is_first=is_first)
                self._router.expect(position + 1, is_first=is_first)
            self._run_cell(position, self._work.records[begin : begin + cell.num_records])
            begin += cell.num_records
            if self._work.rotating and cell.target != self._peers.rank:
                self._send_on(cell)
            self._note_sends(self._router.send(position))
        if self._servers.is_needed:
            merging = time.perf_counter()
            self._servers.end_epoch()
            self.times.merge_seconds += time.perf_counter() - merging
        # Blocks for the first cells of the next epoch are received in that epoch. Waiting for them now could deadlock.
        for pending, _ in self._sent_before:
            pending.wait()
        self._sent_before, self._sends = self._sends, []
        self.times.epoch_seconds += time.perf_counter() - begun

    def finish(self) -> None:
        """Receive the blocks that were sent for a next epoch, after the last one."""
        for cell in self._work.cells:
            arriving = self._expect(cell, is_first=False) if cell.is_first else None
            for pending in arriving.waits if arriving is not None else ():
                pending.wait()
        self._router.finish()
        for pending, _ in self._sent_before:
            pending.wait()
        self.times.sent_bytes += self._servers.sent_bytes

    def _run_cell(self, position: int, records: Records) -> None:
        for place, part in enumerate(np.array_split(records, self._work.num_pieces)):
            piece = position * self._work.num_pieces + place
            taking = time.perf_counter()
            if self._servers.is_needed:
                self._servers.take(piece)
            begun, processor_begun = time.perf_counter(), time.thread_time()
            with loop_code(self._loop, f"{self._loop.name}()"):
                self.way.run(part, self._tables)
            if self._dilation > 1:
                wanted = (time.thread_time() - processor_begun) * self._dilation
                time.sleep(max(0.0, begun + wanted - time.perf_counter()))
            done = time.perf_counter()
            self.times.compute_seconds += done - begun
            if self._servers.is_needed:
                self._servers.put(piece)
                self.times.merge_seconds += begun - taking + time.perf_counter() - done

    def _expect(self, cell: RankCell, *, is_first: bool) -> _Arrival | None:
        """Begin to receive the block of a cell if another rank has it."""
        if not self._work.rotating or cell.source == self._peers.rank or (is_first and cell.is_first):
            return None
        rows = self._work.rotating[cell.rotating]
        arrays = {
            name: np.empty((len(one), *self._tables[name].shape[1:]), self._tables[name].dtype)
            for name, one in rows.items()
        }
        waits = [
            self._peers.post_receive(array, cell.source, _BLOCK_TAG + cell.rotating)
            for array in arrays.values()
            if array.size
        ]
        return _Arrival(rows, arrays, waits)

    def _take(self, arriving: _Arrival | None, position: int) -> None:
        """Wait for the block and the rows of a cell, and write them into the tables."""
        begun = time.perf_counter()
        for pending in arriving.waits if arriving is not None else ():
            pending.wait()
        self._router.take(position)
        self.times.wait_seconds += time.perf_counter() - begun
        if arriving is not None:
            for name, one in arriving.rows.items():
                self._tables[name][one] = arriving.arrays[name]

    def _send_on(self, cell: RankCell) -> None:
        arrays = [self._tables[name][one] for name, one in self._work.rotating[cell.rotating].items()]
        tag = _BLOCK_TAG + cell.rotating
        self._note_sends([(self._peers.post_send(one, cell.target, tag), one) for one in arrays if one.size])

    def _note_sends(self, sends: list[tuple[Pending, np.ndarray]]) -> None:
        self._sends += sends
        self.times.sent_bytes += sum(array.nbytes for _, array in sends)

    def bring(self, works: Sequence[RankWork]) -> None:
        """Send all changed rows to rank 0. Its tables are then those of the serial program."""
        if self._peers.rank != 0:
            for rows in self._work.held_last():
                send_numbers(self._peers, rows, self._tables, 0)
            if self._work.changes_records:
                send_array(self._peers, self._work.records, 0)
        else:
            for rank in range(1, self._peers.num_ranks):
                for rows in works[rank].held_last():
                    receive_numbers(self._peers, rows, self._loop, self._results, rank)
                if self._work.changes_records:
                    works[rank].records[:] = receive_array(self._peers, self._work.records.dtype, rank)
        if self._work.summed:
            self._sums.add_up()
        self._servers.bring()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A block that this rank is receiving."""

    rows: TableRows
    arrays: Mapping[str, np.ndarray]
    waits: list[Pending]
