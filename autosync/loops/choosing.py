"""Chooses the schedule of a loop.

A loop without dependences is cut anywhere. Other loops are cut along one dimension, or along two dimensions whose
blocks rotate or form a wavefront. If none of these keeps the serial result, the loop has no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from autosync.loops.affine import Affine
from autosync.loops.declarations import Records
from autosync.loops.dependences import Dependence, LoopAnalysis
from autosync.loops.record_blocks import balanced_cuts, block_of
from autosync.loops.schedules import (
    LoopSchedule,
    NoSchedule,
    rotation_cells,
    single_cells,
    wavefront_cells,
)

BLOCKS_PER_RANK = 2
"""The number of rotating blocks for each rank: it works on one while the other one travels."""


def choose(analysis: LoopAnalysis, records: Records, num_ranks: int) -> LoopSchedule | NoSchedule:
    """Return the schedule for `num_ranks` ranks that moves the fewest bytes, or the reasons why there is none."""
    if num_ranks == 1:
        return LoopSchedule(kind="serial", num_ranks=1, cells=single_cells(1), reason="one rank")
    if not analysis.dependences:
        reason = "no two records change a row that the other one touches"
        if analysis.merged:
            reason = f"only merged tables change: {', '.join(analysis.merged)}"
        return LoopSchedule(kind="independent", num_ranks=num_ranks, cells=single_cells(num_ranks), reason=reason)
    return (
        _one_dimension(analysis, records, num_ranks)
        or _two_dimensions(analysis, records, num_ranks)
        or NoSchedule(reasons=tuple(_reasons(analysis)))
    )


def _one_dimension(analysis: LoopAnalysis, records: Records, num_ranks: int) -> LoopSchedule | None:
    """Cut along the best-balanced dimension along which every distance is 0."""
    found: list[tuple[int, Affine, tuple[int, ...]]] = []
    for position, dimension in enumerate(analysis.dimensions):
        if all(one.distances[position] == 0 for one in analysis.dependences):
            values = dimension.values(records)
            cuts = balanced_cuts(values, num_ranks)
            found.append((_fullest(block_of(values, cuts)), dimension, cuts))
    if not found:
        return None
    _, dimension, cuts = min(found, key=lambda one: one[0])
    return LoopSchedule(
        kind="one_dimension",
        num_ranks=num_ranks,
        stay=dimension,
        stay_cuts=cuts,
        cells=single_cells(num_ranks),
        reason=f"every dependence has distance 0 along {dimension}",
    )


def _fullest(blocks: np.ndarray) -> int:
    return int(np.bincount(blocks).max()) if len(blocks) else 0


def _two_dimensions(analysis: LoopAnalysis, records: Records, num_ranks: int) -> LoopSchedule | None:
    """Cut along two dimensions. The tables of the dimension with fewer bytes rotate."""
    pairs = list(_pairs(analysis))
    if not pairs:
        return None
    stay, rotate = min(pairs, key=lambda pair: _rotating_bytes(analysis, *pair))
    is_wavefront = analysis.loop.order == "given"
    if is_wavefront:
        in_order = [pair for pair in pairs if _is_in_order(*pair, records)]
        if not in_order:
            return None
        stay, rotate = min(in_order, key=lambda pair: _rotating_bytes(analysis, *pair))
    num_rotating = BLOCKS_PER_RANK * num_ranks
    cells = (wavefront_cells if is_wavefront else rotation_cells)(num_ranks, num_rotating)
    return LoopSchedule(
        kind="wavefront" if is_wavefront else "two_dimensions",
        num_ranks=num_ranks,
        stay=stay,
        stay_cuts=balanced_cuts(stay.values(records), num_ranks),
        rotate=rotate,
        rotate_cuts=balanced_cuts(rotate.values(records), num_rotating),
        cells=cells,
        reason=f"every dependence has distance 0 along {stay} or along {rotate}",
    )


def _pairs(analysis: LoopAnalysis) -> Iterator[tuple[Affine, Affine]]:
    for first, second in permutations(range(len(analysis.dimensions)), 2):
        if all(0 in (one.distances[first], one.distances[second]) for one in analysis.dependences):
            yield analysis.dimensions[first], analysis.dimensions[second]


def _rotating_bytes(analysis: LoopAnalysis, stay: Affine, rotate: Affine) -> int:
    """Return an upper limit of the bytes of all rows that rotate."""
    total = 0
    for form, table in {
        (one.row, one.table) for one in analysis.accesses_of("ordered") if one.table in analysis.changed
    }:
        if form.multiple_of(rotate) and not form.multiple_of(stay):
            low, high = analysis.bounds[form]
            total += (high - low + 1) * analysis.loop.tables[table].row_bytes
    return total


def _is_in_order(stay: Affine, rotate: Affine, records: Records) -> bool:
    """Return whether records with the same value along one dimension are in ascending order along the other."""
    first, second = stay.values(records), rotate.values(records)
    return _ascends_within(first, second) and _ascends_within(second, first)


def _ascends_within(groups: np.ndarray, values: np.ndarray) -> bool:
    order = np.argsort(groups, kind="stable")
    same = groups[order][1:] == groups[order][:-1]
    return bool(np.all(values[order][1:][same] >= values[order][:-1][same]))


def _reasons(analysis: LoopAnalysis) -> Iterator[str]:
    """Yield the reasons against a schedule: a line for each dependence, or one about the order of the records."""
    if analysis.loop.order == "given" and (pairs := list(_pairs(analysis))):
        stay, rotate = pairs[0]
        yield (
            f"{stay} and {rotate} would do, but the order is given, and records with the same {stay} do not ascend in "
            f"{rotate} (or the reverse): sort the records by {stay}, then {rotate}"
        )
        return
    blocking = [one for one in analysis.dependences if 0 not in one.distances]
    for one in blocking or analysis.dependences:
        yield words_of(one)
    if not blocking:
        yield (
            f"rows of {len(analysis.dimensions)} dimensions conflict "
            f"({', '.join(map(str, analysis.dimensions))}), and a schedule cuts along two at most"
        )


def words_of(dependence: Dependence) -> str:
    """Return a dependence in words: its table, the two accesses with their lines, and its vector."""
    first, second = dependence.first, dependence.second
    one = f"{dependence.table}[{first.row}] {_DONE[first.kind]} at line {first.line}"
    other = f", [{second.row}] {_DONE[second.kind]} at line {second.line}" if second != first else ""
    return f"{one}{other}: {dependence.vector}"


_DONE = {"read": "read", "write": "written", "add": "added to"}
