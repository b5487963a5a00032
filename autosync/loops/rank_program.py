"""The program of a rank. Rank 0 analyses the loop and hands out the work, and it has the tables at the end."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from autosync import jsonio
from autosync.errors import InputError, OperationError
from autosync.loops.checkpoints import Checkpoint, Checkpoints, RunOrigin
from autosync.loops.choosing import choose
from autosync.loops.declarations import Records, SerialLoop, Tables
from autosync.loops.dependences import LoopAnalysis, analyse
from autosync.loops.load import loop_code
from autosync.loops.outer_values import different_numbers, keeping_numbers, numbers_of
from autosync.loops.peers import Peers, receive_value, send_value
from autosync.loops.proof import ScheduleProof, prove
from autosync.loops.rank_run import LoopSettings, RankRun, RankTimes
from autosync.loops.rank_work import receive_work, send_work, works_of
from autosync.loops.record_blocks import Blocks, split
from autosync.loops.schedules import LoopSchedule, NoSchedule, ScheduleChoice
from autosync.loops.shards import hash_of_records, keep_records
from autosync.loops.source import function_tree
from autosync.loops.table_rows import plan_rows


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLoop:
    """A loop with its records and their analysis, at rank 0. Runs change copies of the records."""

    loop: SerialLoop
    records: Records
    analysis: LoopAnalysis

    def initial_tables(self, seed: int) -> Tables:
        """Return new tables with their initial numbers."""
        with keeping_numbers(self.loop, "the initial tables"), loop_code(self.loop, "the initial tables"):
            return self.loop.initial_tables(seed)

    def loss_of(self, records: Records, tables: Tables) -> float:
        """Return the loss of tables. The loop must have one."""
        loop = self.loop
        assert loop.loss is not None, "the caller has checked that the loop has a loss"
        with keeping_numbers(loop, "the loss"), loop_code(loop, "the loss"):
            return float(loop.loss(_read_only(records), **{name: _read_only(one) for name, one in tables.items()}))


def prepare(loop: SerialLoop) -> PreparedLoop:
    """Load and analyse the records of a loop."""
    with loop_code(loop, "records()"):
        records = loop.load_records()
    return PreparedLoop(loop=loop, records=records, analysis=analyse(loop, records))


def no_schedule_error(loop: SerialLoop, found: NoSchedule, choice: ScheduleChoice) -> InputError:
    """Return the error that refuses a run on several ranks."""
    reasons = "; ".join(found.reasons)
    if choice.data_parallel:
        return InputError(
            f"no data-parallel training: {reasons}",
            rule="records in any order, and conflicting rows change by += or -=",
        ).located(loop.file, loop.line)
    return InputError(
        f"no schedule keeps the serial result: {reasons}",
        rule="records that conflict share a value along one or two dimensions",
        hint='run one rank, or ask for data-parallel training (--data-parallel, or tables with updates="buffered")',
    ).located(loop.file, loop.line)


def run_first(
    peers: Peers,
    loop: SerialLoop,
    settings: LoopSettings,
    told: Callable[[EpochReport], None] = lambda _: None,
    *,
    checkpoints: Checkpoints | None = None,
) -> LoopResult:
    """Run the program of rank 0. It calls `told` after each epoch."""

    def tell(report: EpochReport) -> bool:
        told(report)
        return True

    prepared = prepare(loop)
    result = run_prepared(peers, prepared, settings, tell, checkpoints=checkpoints)
    end_others(peers)
    return result


def end_others(peers: Peers) -> None:
    """Tell the other ranks that there are no more runs."""
    for rank in range(1, peers.num_ranks):
        send_value(peers, {"is_end": True}, rank)


def run_prepared(
    peers: Peers,
    prepared: PreparedLoop,
    settings: LoopSettings,
    goes_on: Callable[[EpochReport], bool],
    *,
    checkpoints: Checkpoints | None = None,
) -> LoopResult:
    """Run a prepared loop on all ranks. It calls `goes_on` after each epoch; if the loop has a loss, False ends it."""
    loop, records = prepared.loop, prepared.records.copy()
    schedule = choose(prepared.analysis, records, peers.num_ranks, settings.choice)
    if isinstance(schedule, NoSchedule):
        raise no_schedule_error(loop, schedule, settings.choice)
    results, fields = prepared.initial_tables(settings.seed), prepared.analysis.body.written_fields
    origin = RunOrigin(loop=digest_of(loop), records="" if checkpoints is None else hash_of_records(prepared.records))
    done = (
        Checkpoint()
        if checkpoints is None
        else checkpoints.restore(origin, settings.num_epochs, fields, records, results)
    )
    every = 0 if checkpoints is None else checkpoints.every
    brings = [
        loop.loss is not None or number == settings.num_epochs or (every > 0 and number % every == 0)
        for number in range(done.num_epochs + 1, settings.num_epochs + 1)
    ]
    run = _FirstRun(peers, prepared, settings, schedule, records=records, results=results, brings=brings)
    losses, seconds = list(done.losses), done.seconds
    for position, is_brought in enumerate(brings):
        seconds += run.epoch(position)
        number, loss = done.num_epochs + position + 1, None
        if is_brought and loop.loss is not None:
            loss = prepared.loss_of(records, results)
            losses.append(loss)
        if checkpoints is not None and is_brought and (number % every == 0 or number == settings.num_epochs):
            made = Checkpoint(num_epochs=number, seconds=seconds, losses=tuple(losses))
            checkpoints.save(origin, made, fields, records, results)
        is_going_on = goes_on(EpochReport(number=number, seconds=seconds, loss=loss))
        if loss is not None and position + 1 < len(brings) and not run.tell(is_going_on=is_going_on):
            break
    return LoopResult(
        tables=results,
        records=records,
        schedule=schedule,
        blocks=run.blocks,
        proof=run.proof,
        losses=tuple(losses),
        seconds=seconds,
        times=tuple(run.finish()),
        is_compiled=run.way.is_compiled,
        why_not_compiled=run.way.why_not,
    )


class _FirstRun:
    """Rank 0 during a run: it hands out the work, and collects the tables after the epochs of `brings`."""

    def __init__(
        self,
        peers: Peers,
        prepared: PreparedLoop,
        settings: LoopSettings,
        schedule: LoopSchedule,
        *,
        records: Records,
        results: Tables,
        brings: Sequence[bool],
    ) -> None:
        self._peers = peers
        self._records = records
        self._brings = brings
        analysis, loop = prepared.analysis, prepared.loop
        self.blocks = split(schedule, records)
        self.proof = prove(analysis, schedule, self.blocks, records)
        rows = plan_rows(analysis, schedule, self.blocks, records)
        self._works = works_of(analysis, schedule, self.blocks, rows, records)
        told = {
            "source": digest_of(loop),
            "numbers": numbers_of(loop.function),
            "settings": asdict(settings),
            "brings": list(brings),
            "has_loss": loop.loss is not None,
        }
        for rank in range(1, peers.num_ranks):
            send_value(peers, told, rank)
            send_work(peers, self._works[rank], results, rank, keeps_records=bool(settings.shards))
        first = self._works[0]
        own = keep_records(peers, first.records, settings.shards, are_changed=first.changes_records)
        self._works[0] = replace(first, records=own)
        self._run = RankRun(peers, loop, self._works[0], results, settings, works=self._works)
        self.way = self._run.way
        # The clock starts when all functions are compiled.
        for rank in range(1, peers.num_ranks):
            if receive_value(peers, rank) != self.way.is_compiled:
                raise OperationError(f"numba compiles {loop.name} on rank 0 or on rank {rank}, and not on both")

    def epoch(self, position: int) -> float:
        """Run an epoch and return its seconds. The time to collect tables does not count."""
        begun = time.perf_counter()
        self._run.epoch(is_first=position == 0)
        if not self._brings[position]:
            return time.perf_counter() - begun
        # An epoch ends with its slowest rank.
        for rank in range(1, self._peers.num_ranks):
            receive_value(self._peers, rank)
        seconds = time.perf_counter() - begun
        self._run.bring(self._works)
        # Copy the fields that the loop assigned back into the records, in their original order.
        for rank, work in enumerate(self._works):
            cells = [self.blocks[rank, cell.rotating] for cell in work.cells]
            self._records[np.concatenate(cells)] = work.records
        return seconds

    def tell(self, *, is_going_on: bool) -> bool:
        """Tell the other ranks whether another epoch follows."""
        for rank in range(1, self._peers.num_ranks):
            send_value(self._peers, is_going_on, rank)
        return is_going_on

    def finish(self) -> Iterator[RankTimes]:
        """End the run, and yield the times of all ranks."""
        self._run.finish()
        yield self._run.times
        for rank in range(1, self._peers.num_ranks):
            yield RankTimes(**receive_value(self._peers, rank))


def run_other(peers: Peers, loop: SerialLoop) -> None:
    """Run the program of a rank other than 0: all runs until rank 0 has no more."""
    while not (told := receive_value(peers, 0)).get("is_end"):
        _check_source(peers.rank, loop, told)
        tables: Tables = {name: np.zeros(table.shape, table.dtype) for name, table in loop.tables.items()}
        settings = settings_of(told["settings"])
        work = receive_work(peers, loop, tables, shards=settings.shards)
        run = RankRun(peers, loop, work, tables, settings)
        send_value(peers, run.way.is_compiled, 0)
        for position, is_brought in enumerate(told["brings"]):
            run.epoch(is_first=position == 0)
            if is_brought:
                send_value(peers, position, 0)
                run.bring([])
            is_last = position + 1 == len(told["brings"])
            if told["has_loss"] and not is_last and not receive_value(peers, 0):
                break
        run.finish()
        send_value(peers, asdict(run.times), 0)


def _check_source(rank: int, loop: SerialLoop, told: Mapping[str, Any]) -> None:
    """Raise OperationError unless this rank has the function and the numbers of rank 0."""
    for name, own, other in different_numbers(numbers_of(loop.function), told["numbers"]):
        raise OperationError(
            f"{loop.file}: {name} is {own} on rank {rank}, and {other} on rank 0. A number that {loop.name}() uses is"
            " the same on all ranks. It is set when the file is loaded: only rank 0 calls records()"
        )
    if told["source"] != digest_of(loop):
        raise OperationError(f"{loop.file} of rank {rank} is another one than that of rank 0")


def settings_of(told: Mapping[str, Any]) -> LoopSettings:
    """Return settings that were sent as plain values."""
    return LoopSettings(**{**told, "choice": ScheduleChoice(**told["choice"])})


def digest_of(loop: SerialLoop) -> str:
    """Return a hash of the function and of the file's numbers that it uses. It must be equal on all ranks."""
    function = loop.function
    tables = {name: [list(table.shape), table.dtype, table.updates] for name, table in loop.tables.items()}
    return jsonio.content_hash([ast.dump(function_tree(function)), numbers_of(function), tables])


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a view that the user's loss cannot change."""
    view = array.view()
    view.flags.writeable = False
    return view
