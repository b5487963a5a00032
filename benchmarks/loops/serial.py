"""The serial run with which a loop on several ranks is compared: in the order of its schedule."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from autosync.loops.choosing import choose
from autosync.loops.declarations import Records
from autosync.loops.dependences import analyse
from autosync.loops.load import load_loop, records_of
from autosync.loops.passes import record_pass
from autosync.loops.record_blocks import Indices, serial_cells, serial_order, split
from autosync.loops.schedules import LoopSchedule


def serial_losses(target: Path, num_ranks: int, num_epochs: int) -> list[float]:
    """Return the loss after each epoch of a serial run, in the order of the schedule for some ranks."""
    loop = load_loop(str(target))
    records, tables = records_of(loop, str(target)), loop.initial_tables()
    schedule = choose(analyse(loop, records), records, num_ranks)
    assert isinstance(schedule, LoopSchedule), "both examples have one"
    taken = records[order_of(schedule, records)]
    way, losses = record_pass(loop, records.dtype, compiled=True), []
    for _ in range(num_epochs):
        way.run(taken, tables)
        losses.append(float(loop.loss(taken, **tables)) if loop.loss is not None else math.nan)
    return losses


def order_of(schedule: LoopSchedule, records: Records) -> Indices:
    """Return the serial order of records that comes closest to a schedule: by its merges if it has nothing else."""
    blocks = split(schedule, records)
    if schedule.kind != "independent" or not schedule.merge_every:
        return serial_order(schedule, blocks)
    parts, every = [blocks[cell.rank, cell.rotating] for cell in serial_cells(schedule)], schedule.merge_every
    begins = range(0, max(map(len, parts)), every)
    return np.concatenate([part[begin : begin + every] for begin in begins for part in parts])
