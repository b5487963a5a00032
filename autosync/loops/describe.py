"""Describes an analysis, a schedule and its proof in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autosync import units
from autosync.loops.choosing import words_of
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.proof import ScheduleProof
from autosync.loops.schedules import LoopSchedule, NoSchedule

_KINDS = {
    "serial": "serial",
    "independent": "independent",
    "one_dimension": "1D",
    "two_dimensions": "2D, rotating blocks",
    "wavefront": "2D, wavefront",
    "skewed": "2D, skewed wavefront",
    "data_parallel": "data-parallel",
}


def describe(
    analysis: LoopAnalysis, schedule: LoopSchedule | NoSchedule, proof: ScheduleProof | None, num_ranks: int
) -> str:
    """Return the analysis as text for users."""
    loop = analysis.loop
    order = "any order" if loop.order == "any" else "the given order"
    lines = [f"{loop.name}: {analysis.num_records:,} records in {order}, {len(loop.tables)} tables", ""]
    lines += [f"  {line}" for line in _table_lines(analysis)]
    dimensions = ", ".join(map(str, analysis.dimensions))
    lines += ["", f"dependences along ({dimensions}):" if analysis.dependences else "no dependences"]
    lines += [f"  {words_of(one)}" for one in analysis.dependences]
    lines += ["", *schedule_lines(analysis, schedule, num_ranks)]
    if proof is not None:
        lines.append(f"  proof: {proof}")
        if proof.steps and num_ranks > 1:
            lines.append(f"  balance: the fullest blocks have {proof.fullest:.2f} times the mean")
    return "\n".join(lines)


def _table_lines(analysis: LoopAnalysis) -> Iterator[str]:
    for name, table in analysis.loop.tables.items():
        kinds = dict.fromkeys(access.kind for access in analysis.body.accesses if access.table == name)
        size = units.format_size(table.shape[0] * table.row_bytes)
        uses = {"read": "read", "write": "written", "add": "added to"}
        used = " and ".join(uses[kind] for kind in kinds) or "not used"
        told = "" if table.updates == "ordered" else f", {table.updates}"
        yield f"{name}: {' x '.join(map(str, table.shape))} {table.dtype} ({size}), {used}{told}"


def schedule_lines(analysis: LoopAnalysis, schedule: LoopSchedule | NoSchedule, num_ranks: int) -> Iterator[str]:
    """Yield the lines that describe the schedule and the reason for it."""
    if isinstance(schedule, NoSchedule):
        yield f"schedule for {num_ranks} ranks: none keeps the serial result"
        yield from (f"  {reason}" for reason in schedule.reasons)
        yield '  one rank runs it; --data-parallel, or tables with updates="buffered", change the result'
        return
    merged = analysis.merged
    kind = _KINDS[schedule.kind]
    if schedule.kind == "independent" and merged:
        kind = "data-parallel"
    yield f"schedule for {num_ranks} rank{'s' if num_ranks > 1 else ''}: {kind}"
    yield f"  reason: {schedule.reason}"
    if schedule.stay is not None:
        yield f"  a block of {schedule.stay} stays with each rank"
    if schedule.kind == "skewed":
        yield f"  each rank runs {schedule.num_rotating} blocks along {schedule.rotate}, and sends changed rows on"
    elif schedule.rotate is not None:
        yield f"  {schedule.num_rotating} blocks of {schedule.rotate} go from rank to rank"
    for name in merged if num_ranks > 1 else ():
        if name not in analysis.buffered:
            yield f"  {name} is commutative: added up after each epoch, rank by rank"
    if schedule.served:
        yield f"  {', '.join(schedule.served)} through servers: merged after {schedule.merge_every} records of a rank"
        if schedule.staleness:
            yield f"  a rank reads the changes of others up to {schedule.staleness} merges late"
        yield "  the result is not that of a serial run"


def schedule_fields(
    analysis: LoopAnalysis, schedule: LoopSchedule | NoSchedule, proof: ScheduleProof | None
) -> dict[str, Any]:
    """Return the analysis as plain values for programs."""
    return {
        "schema": "autosync.loop_analysis/1",
        "loop": analysis.loop.name,
        "order": analysis.loop.order,
        "num_records": analysis.num_records,
        "accesses": [
            {"table": one.table, "row": str(one.row), "kind": one.kind, "line": one.line}
            for one in analysis.body.accesses
        ],
        "dimensions": [str(one) for one in analysis.dimensions],
        "dependences": [
            {"table": one.table, "lines": [one.first.line, one.second.line], "distances": list(one.distances)}
            for one in analysis.dependences
        ],
        "schedule": None if isinstance(schedule, NoSchedule) else _schedule(schedule),
        "reasons": list(schedule.reasons) if isinstance(schedule, NoSchedule) else [schedule.reason],
        "merged": list(analysis.merged),
        "result": _result(analysis, schedule),
        "proof": None if proof is None else _proof(proof),
    }


def _result(analysis: LoopAnalysis, schedule: LoopSchedule | NoSchedule) -> str | None:
    """Return how the final tables compare with those of a serial run."""
    if isinstance(schedule, NoSchedule):
        return None
    if schedule.served:
        return "data-parallel"
    merged = [analysis.loop.tables[name] for name in analysis.merged] if schedule.kind != "serial" else []
    is_rounded = any(np.dtype(table.dtype).kind == "f" for table in merged)
    return "serial, up to the rounding of sums" if is_rounded else "serial"


def _schedule(schedule: LoopSchedule) -> dict[str, Any]:
    return {
        "kind": schedule.kind,
        "num_ranks": schedule.num_ranks,
        "stay": None if schedule.stay is None else str(schedule.stay),
        "stay_cuts": list(schedule.stay_cuts),
        "rotate": None if schedule.rotate is None else str(schedule.rotate),
        "rotate_cuts": list(schedule.rotate_cuts),
        "served": list(schedule.served),
        "merge_every": schedule.merge_every,
        "staleness": schedule.staleness,
        "cells": [[cell.step, cell.rank, cell.rotating] for cell in schedule.cells],
    }


def _proof(proof: ScheduleProof) -> dict[str, Any]:
    return {
        "records_of_ranks": list(proof.num_records),
        "fullest": proof.fullest,
        "steps": [{"step": one.step, "table": one.table, "rows_of_ranks": list(one.num_rows)} for one in proof.steps],
    }
