"""Finds the rows that each rank needs: rows that stay with it, rows that rotate, and rows that it only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autosync.loops.accesses import Access
from autosync.loops.declarations import Records
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.record_blocks import Blocks, Indices
from autosync.loops.schedules import LoopSchedule

TableRows = dict[str, Indices]
"""The rows of each table, ascending and without repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows of each rank and of each rotating block.

    A rank reads `fetched` rows and never sends them back. `staying` rows belong to one rank. `rotating` rows travel
    with their block. In a skewed schedule, changed rows are fetched too, and messages bring later changes.
    """

    fetched: tuple[TableRows, ...]
    staying: tuple[TableRows, ...]
    rotating: tuple[TableRows, ...] = field(default=())


def plan_rows(analysis: LoopAnalysis, schedule: LoopSchedule, blocks: Blocks, records: Records) -> RowPlan:
    """Return the rows that the records of each rank and of each rotating block touch."""
    fetched, staying, rotating = [], [], []
    groups = _groups(analysis, schedule)
    for rank in range(schedule.num_ranks):
        parts = [blocks[rank, block] for block in range(schedule.num_rotating) if (rank, block) in blocks]
        own = records[np.concatenate(parts)]
        fetched.append(_rows(groups["fetched"], own))
        staying.append(_rows(groups["staying"], own))
    if schedule.rotate is not None:
        for block in range(schedule.num_rotating):
            there = records[np.concatenate([blocks[rank, block] for rank in range(schedule.num_ranks)])]
            rotating.append(_rows(groups["rotating"], there))
    return RowPlan(fetched=tuple(fetched), staying=tuple(staying), rotating=tuple(rotating))


def touched_rows(accesses: Iterable[Access], records: Records) -> TableRows:
    """Return the rows of each table that records touch."""
    return _rows(list(accesses), records)


def _groups(analysis: LoopAnalysis, schedule: LoopSchedule) -> Mapping[str, list[Access]]:
    """Return the accesses grouped by the movement of their rows: fetched, staying or rotating."""
    groups: dict[str, list[Access]] = {"fetched": [], "staying": [], "rotating": []}
    in_conflict = {(one.table, form) for one in analysis.dependences for form in (one.first.row, one.second.row)}
    for access in analysis.body.accesses:
        is_summed = analysis.loop.tables[access.table].updates == "commutative" and access.table in analysis.changed
        if is_summed or access.table in schedule.served:
            continue
        is_free = (access.table, access.row) not in in_conflict
        if is_free or schedule.stay is None or schedule.kind == "skewed":
            group = "fetched"
        elif access.row.multiple_of(schedule.stay):
            group = "staying"
        else:
            group = "rotating"
        groups[group].append(access)
    return groups


def _rows(accesses: list[Access], records: Records) -> TableRows:
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for access in dict.fromkeys((one.table, one.row) for one in accesses):
        table, form = access
        found.setdefault(table, []).append(form.values(records).ravel())
    return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}
