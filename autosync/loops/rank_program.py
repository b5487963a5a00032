"""The program of a rank. Rank 0 analyses the loop and hands out the work, and it has the tables at the end.

A rank sends a rotating block on as soon as its records are done, and receives the next block while this one runs. A
rank's arrays have the whole shape of a table, but only the rows that it needs are filled. So the user's subscripts stay
valid, and memory that is never touched costs nothing.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from autosync import jsonio
from autosync.errors import InputError, OperationError
from autosync.loops.body_reader import read_body
from autosync.loops.choosing import choose
from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.dependences import analyse
from autosync.loops.load import loop_code
from autosync.loops.merging import Merger
from autosync.loops.passes import RecordPass, record_pass
from autosync.loops.peers import Peers, Pending, receive_array, receive_value, send_array, send_value
from autosync.loops.proof import ScheduleProof, prove
from autosync.loops.rank_work import (
    RankCell,
    RankWork,
    receive_numbers,
    receive_work,
    send_numbers,
    send_work,
    works_of,
)
from autosync.loops.record_blocks import Blocks, split
from autosync.loops.schedules import LoopSchedule, NoSchedule
from autosync.loops.source import function_tree
from autosync.loops.table_rows import TableRows, plan_rows

_BLOCK_TAG = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The number of epochs, the seed of the initial tables, and whether numba may compile the function.

    `dilation` is for measurements of many ranks on few cores: a rank sleeps until its compute has taken `dilation`
    times the processor time that it used.
    """

    num_epochs: int = 1
    seed: int = 0
    compiled: bool = True
    dilation: float = 1.0


@dataclass(slots=True, kw_only=True)
class RankTimes:
    """The parts of a rank's time, and the bytes that it sent in rotation."""

    rank: int
    num_records: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    merge_seconds: float = 0.0
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Rank 0's report after an epoch: the seconds of all epochs so far, and the loss, if the loop has one."""

    number: int
    seconds: float
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """The results of a run, at rank 0."""

    tables: Tables
    records: Records
    schedule: LoopSchedule
    blocks: Blocks
    proof: ScheduleProof
    losses: tuple[float, ...]
    seconds: float
    times: tuple[RankTimes, ...]
    is_compiled: bool
    why_not_compiled: str


def no_schedule_error(loop: SerialLoop, found: NoSchedule) -> InputError:
    """Return the error that refuses a run on several ranks."""
    return InputError(
        f"no schedule keeps the serial result: {'; '.join(found.reasons)}",
        rule="records that conflict share a value along one or two dimensions",
        hint='run one rank, or declare tables with updates="buffered" for data-parallel training',
    ).located(loop.file, loop.line)


def run_first(
    peers: Peers, loop: SerialLoop, settings: LoopSettings, told: Callable[[EpochReport], None] = lambda _: None
) -> LoopResult:
    """Run the program of rank 0. It calls `told` after each epoch."""
    with loop_code(loop, "records()"):
        records = loop.load_records()
    analysis = analyse(loop, records)
    schedule = choose(analysis, records, peers.num_ranks)
    if isinstance(schedule, NoSchedule):
        raise no_schedule_error(loop, schedule)
    blocks = split(schedule, records)
    proof = prove(analysis, schedule, blocks, records)
    works = works_of(analysis, schedule, blocks, plan_rows(analysis, schedule, blocks, records), records)
    with loop_code(loop, "the initial tables"):
        results = loop.initial_tables(settings.seed)
    for rank in range(1, peers.num_ranks):
        send_value(peers, {"source": _digest(loop), **asdict(settings), "has_loss": loop.loss is not None}, rank)
        send_work(peers, works[rank], results, rank)
    run = RankRun(peers, loop, works[0], results, settings, works=works)
    for rank in range(1, peers.num_ranks):
        if receive_value(peers, rank) != run.way.is_compiled:
            raise OperationError(f"numba compiles {loop.name} on rank 0 or on rank {rank}, and not on both")
    losses: list[float] = []
    seconds = 0.0
    for epoch in range(settings.num_epochs):
        is_last = epoch == settings.num_epochs - 1
        begun = time.perf_counter()
        run.epoch(is_first=epoch == 0, is_last=is_last)
        if is_last or loop.loss is not None:
            # An epoch ends with its slowest rank. The time to collect tables for the loss does not count.
            for rank in range(1, peers.num_ranks):
                receive_value(peers, rank)
        seconds += time.perf_counter() - begun
        if is_last or loop.loss is not None:
            run.bring(works)
        loss = None
        if loop.loss is not None:
            _put_back(records, blocks, works)
            with loop_code(loop, "the loss"):
                loss = float(loop.loss(_read_only(records), **{name: _read_only(one) for name, one in results.items()}))
            losses.append(loss)
        told(EpochReport(number=epoch + 1, seconds=seconds, loss=loss))
    _put_back(records, blocks, works)
    times = [run.times, *(RankTimes(**receive_value(peers, rank)) for rank in range(1, peers.num_ranks))]
    return LoopResult(
        tables=results,
        records=records,
        schedule=schedule,
        blocks=blocks,
        proof=proof,
        losses=tuple(losses),
        seconds=seconds,
        times=tuple(times),
        is_compiled=run.way.is_compiled,
        why_not_compiled=run.way.why_not,
    )


def run_other(peers: Peers, loop: SerialLoop) -> None:
    """Run the program of a rank other than 0."""
    told = receive_value(peers, 0)
    if told["source"] != _digest(loop):
        raise OperationError(f"{loop.file} of rank {peers.rank} is another one than that of rank 0")
    tables: Tables = {name: np.zeros(table.shape, table.dtype) for name, table in loop.tables.items()}
    work = receive_work(peers, loop, tables)
    settings = LoopSettings(**{field.name: told[field.name] for field in fields(LoopSettings)})
    run = RankRun(peers, loop, work, tables, settings)
    # Rank 0 starts its clock when all functions are compiled.
    send_value(peers, run.way.is_compiled, 0)
    for epoch in range(settings.num_epochs):
        is_last = epoch == settings.num_epochs - 1
        run.epoch(is_first=epoch == 0, is_last=is_last)
        if is_last or told["has_loss"]:
            send_value(peers, epoch, 0)
            run.bring([])
    send_value(peers, asdict(run.times), 0)


def _digest(loop: SerialLoop) -> str:
    """Return a hash of the function and of the file's numbers that it uses. It must be equal on all ranks."""
    function = loop.function
    named = {name: repr(function.__globals__.get(name)) for name in sorted(function.__code__.co_names)}
    cells = [repr(cell.cell_contents) for cell in function.__closure__ or ()]
    tables = {name: [list(table.shape), table.dtype, table.updates] for name, table in loop.tables.items()}
    return jsonio.content_hash([ast.dump(function_tree(function)), _without_addresses(named), cells, tables])


def _without_addresses(named: Mapping[str, str]) -> dict[str, str]:
    """Drop modules, functions and other values whose text contains a memory address: it differs between processes."""
    return {name: text for name, text in named.items() if not text.startswith("<")}


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that the user's loss cannot change."""
    view = array.view()
    view.flags.writeable = False
    return view


def _put_back(records: Records, blocks: Blocks, works: list[RankWork]) -> None:
    """Copy the fields that the loop assigned back into the records, in their original order."""
    for rank, work in enumerate(works):
        cells = [blocks[rank, cell.rotating] for cell in work.cells]
        records[np.concatenate(cells)] = work.records


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
        self._tables = dict(results)
        body = read_body(loop.function, work.records.dtype, loop.tables)
        self._has_written_fields = bool(body.written_fields)
        changed = {access.table for access in body.accesses if access.changes}
        for name, table in loop.tables.items():
            if peers.num_ranks > 1 and name in changed and table.updates != "ordered":
                is_buffered = table.updates == "buffered"
                self._tables[name] = results[name].copy() if is_buffered else np.zeros_like(results[name])
        self._merger = Merger(peers, loop, body.accesses, self._tables, results, work=work, works=works)
        self.way: RecordPass = record_pass(
            loop, work.records.dtype, compiled=settings.compiled, checks_bounds=body.has_inner_subscripts
        )
        self._dilation = settings.dilation
        self.times = RankTimes(rank=peers.rank, num_records=len(work.records))
        self._sends: list[tuple[Pending, np.ndarray]] = []
        self._sent_before: list[tuple[Pending, np.ndarray]] = []

    def epoch(self, *, is_first: bool, is_last: bool) -> None:
        """Run all cells once."""
        begin = 0
        arriving: _Arrival | None = None
        for position, cell in enumerate(self._work.cells):
            if position == 0:
                arriving = self._expect(cell, is_first=is_first)
            self._take(arriving)
            if position + 1 < len(self._work.cells):
                arriving = self._expect(self._work.cells[position + 1], is_first=is_first)
            self._run_cell(position, self._work.records[begin : begin + cell.num_records])
            begin += cell.num_records
            if self._work.rotating and cell.target != self._peers.rank and not (is_last and cell.is_last):
                self._send_on(cell)
        # Blocks for the first cells of the next epoch are received in that epoch. Waiting for them now could deadlock.
        sent, self._sends = self._sends, []
        for pending, _ in [*self._sent_before, *(sent if is_last else [])]:
            pending.wait()
        self._sent_before = sent

    def _run_cell(self, position: int, records: Records) -> None:
        for place, part in enumerate(np.array_split(records, self._work.num_pieces)):
            begun, processor_begun = time.perf_counter(), time.thread_time()
            with loop_code(self._loop, f"{self._loop.name}()"):
                self.way.run(part, self._tables)
            if self._dilation > 1:
                wanted = (time.thread_time() - processor_begun) * self._dilation
                time.sleep(max(0.0, begun + wanted - time.perf_counter()))
            done = time.perf_counter()
            self.times.compute_seconds += done - begun
            if self._merger.is_needed:
                self._merger.merge(position * self._work.num_pieces + place)
                self.times.merge_seconds += time.perf_counter() - done

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

    def _take(self, arriving: _Arrival | None) -> None:
        """Wait for a block and write its rows into the tables."""
        if arriving is None:
            return
        begun = time.perf_counter()
        for pending in arriving.waits:
            pending.wait()
        self.times.wait_seconds += time.perf_counter() - begun
        for name, one in arriving.rows.items():
            self._tables[name][one] = arriving.arrays[name]

    def _send_on(self, cell: RankCell) -> None:
        for name, one in self._work.rotating[cell.rotating].items():
            array = self._tables[name][one]
            if array.size:
                tag = _BLOCK_TAG + cell.rotating
                self._sends.append((self._peers.post_send(array, cell.target, tag), array))
                self.times.sent_bytes += array.nbytes

    def bring(self, works: list[RankWork]) -> None:
        """Send all changed rows to rank 0. Its tables are then those of the serial program."""
        if self._peers.rank != 0:
            for rows in self._work.held_last():
                send_numbers(self._peers, rows, self._tables, 0)
            if self._has_written_fields:
                send_array(self._peers, self._work.records, 0)
        else:
            for rank in range(1, self._peers.num_ranks):
                for rows in works[rank].held_last():
                    receive_numbers(self._peers, rows, self._loop, self._results, rank)
                if self._has_written_fields:
                    works[rank].records[:] = receive_array(self._peers, self._work.records.dtype, rank)
        self._merger.add_up()


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A block that this rank is receiving."""

    rows: TableRows
    arrays: Mapping[str, np.ndarray]
    waits: list[Pending]
