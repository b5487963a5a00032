"""Chooses the schedule of a loop.

A loop without dependences is cut anywhere. Other loops are cut along one dimension, or along two dimensions whose
blocks rotate or form a wavefront; a transformation of the fields may give these two. If none of these keeps the serial
result, the loop has no schedule. A data-parallel schedule does not keep it, so it is made only if the user or the tuner
asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from autosync.errors import InputError
from autosync.loops.affine import Affine
from autosync.loops.declarations import Records
from autosync.loops.dependences import Dependence, LoopAnalysis
from autosync.loops.record_blocks import balanced_cuts, block_of, split
from autosync.loops.schedules import (
    LoopSchedule,
    NoSchedule,
    ScheduleChoice,
    rotation_cells,
    single_cells,
    wavefront_cells,
)
from autosync.loops.skewing import find_skewings

_MOVES_LEAST = ScheduleChoice()
_MAX_SKEWINGS = 8
_MOST_OF_SERIAL = 0.9
"""A skewed schedule is offered if its steps take at most this share of a serial run's time, messages aside."""


def choose(
    analysis: LoopAnalysis, records: Records, num_ranks: int, choice: ScheduleChoice = _MOVES_LEAST
) -> LoopSchedule | NoSchedule:
    """Return the schedule for `num_ranks` ranks that moves the fewest bytes, or the reasons why there is none."""
    _check_dimensions(analysis, records, choice)
    if num_ranks == 1 or choice.on_one_rank:
        reason = "one rank" if num_ranks == 1 else "one rank works, the others are idle"
        return LoopSchedule(kind="serial", num_ranks=num_ranks, cells=single_cells(num_ranks), reason=reason)
    if not analysis.dependences and not (choice.data_parallel and analysis.buffered):
        reason = "no two records change a row that the other one touches"
        if analysis.merged:
            reason = f"only merged tables change: {', '.join(analysis.merged)}"
        return LoopSchedule(
            kind="independent",
            num_ranks=num_ranks,
            cells=single_cells(num_ranks),
            served=analysis.buffered,
            merge_every=_merge_every(analysis),
            reason=reason,
        )
    if choice.data_parallel:
        return _data_parallel(analysis, records, num_ranks, choice)
    return (
        _one_dimension(analysis, records, num_ranks, choice)
        or _two_dimensions(analysis, records, num_ranks, choice)
        or _skewed(analysis, records, num_ranks, choice)
        or NoSchedule(reasons=tuple(_reasons(analysis, choice)))
    )


def exact_choices(analysis: LoopAnalysis, records: Records, num_ranks: int) -> list[ScheduleChoice]:
    """Return the choices of dimensions with which a schedule keeps the serial result, fewest bytes first."""
    if not analysis.dependences:
        return [ScheduleChoice()]
    single = [
        ScheduleChoice(stay=str(dimension))
        for position, dimension in enumerate(analysis.dimensions)
        if all(one.distances[position] == 0 for one in analysis.dependences)
    ]
    double = [
        ScheduleChoice(stay=str(stay), rotate=str(rotate))
        for stay, rotate in sorted(_pairs(analysis, _MOVES_LEAST), key=lambda pair: _rotating_bytes(analysis, *pair))
        if analysis.loop.order == "any" or _is_in_order(stay, rotate, records)
    ]
    if single or double:
        return single or double
    skewed = _skewed(analysis, records, num_ranks, _MOVES_LEAST)
    return [] if skewed is None else [ScheduleChoice(stay=str(skewed.stay), rotate=str(skewed.rotate))]


def _check_dimensions(analysis: LoopAnalysis, records: Records, choice: ScheduleChoice) -> None:
    if not choice.stay and not choice.rotate:
        return
    skewings = find_skewings(analysis, records)
    known = dict.fromkeys(
        map(str, [*analysis.dimensions, *(each for one in skewings for each in (one.first, one.second))])
    )
    for name in (choice.stay, choice.rotate):
        if name and name not in known:
            rule = f"known: {', '.join(known)}" if known else "the loop has no dependences"
            raise InputError(f"{name!r} is no dimension of {analysis.loop.name}", rule=rule)


def _merge_every(analysis: LoopAnalysis) -> int:
    return min((analysis.loop.tables[name].merge_every for name in analysis.buffered), default=0)


def _one_dimension(
    analysis: LoopAnalysis, records: Records, num_ranks: int, choice: ScheduleChoice
) -> LoopSchedule | None:
    """Cut along the best-balanced dimension along which every distance is 0."""
    found: list[tuple[int, Affine, tuple[int, ...]]] = []
    for position, dimension in enumerate(analysis.dimensions):
        is_asked = choice.stay in {"", str(dimension)} and not choice.rotate
        if is_asked and all(one.distances[position] == 0 for one in analysis.dependences):
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
        served=analysis.buffered,
        merge_every=_merge_every(analysis),
        reason=f"every dependence has distance 0 along {dimension}",
    )


def _fullest(blocks: np.ndarray) -> int:
    return int(np.bincount(blocks).max()) if len(blocks) else 0


def _two_dimensions(
    analysis: LoopAnalysis, records: Records, num_ranks: int, choice: ScheduleChoice
) -> LoopSchedule | None:
    """Cut along two dimensions. The tables of the dimension with fewer bytes rotate."""
    pairs = list(_pairs(analysis, choice))
    is_wavefront = analysis.loop.order == "given"
    if is_wavefront:
        pairs = [pair for pair in pairs if _is_in_order(*pair, records)]
    if not pairs:
        return None
    stay, rotate = min(pairs, key=lambda pair: _rotating_bytes(analysis, *pair))
    num_rotating = choice.blocks_per_rank * num_ranks
    cells = (wavefront_cells if is_wavefront else rotation_cells)(num_ranks, num_rotating)
    return LoopSchedule(
        kind="wavefront" if is_wavefront else "two_dimensions",
        num_ranks=num_ranks,
        stay=stay,
        stay_cuts=balanced_cuts(stay.values(records), num_ranks),
        rotate=rotate,
        rotate_cuts=balanced_cuts(rotate.values(records), num_rotating),
        cells=cells,
        served=analysis.buffered,
        merge_every=_merge_every(analysis),
        reason=f"every dependence has distance 0 along {stay} or along {rotate}",
    )


def _skewed(analysis: LoopAnalysis, records: Records, num_ranks: int, choice: ScheduleChoice) -> LoopSchedule | None:
    """Cut along two transformed dimensions, if blocks along them keep the ranks busy."""
    best: tuple[int, LoopSchedule] | None = None
    num_rotating = choice.blocks_per_rank * num_ranks
    for one in find_skewings(analysis, records)[:_MAX_SKEWINGS]:
        if choice.stay not in {"", str(one.second)} or choice.rotate not in {"", str(one.first)}:
            continue
        schedule = LoopSchedule(
            kind="skewed",
            num_ranks=num_ranks,
            stay=one.second,
            stay_cuts=balanced_cuts(one.second.values(records), num_ranks),
            rotate=one.first,
            rotate_cuts=balanced_cuts(one.first.values(records), num_rotating),
            cells=wavefront_cells(num_ranks, num_rotating),
            reason=f"no dependence has a negative distance along {one.first} or along {one.second}",
        )
        length = _length(schedule, records)
        if best is None or length < best[0]:
            best = (length, schedule)
    is_worth_it = best is not None and best[0] <= _MOST_OF_SERIAL * len(records)
    return best[1] if best is not None and is_worth_it else None


def _length(schedule: LoopSchedule, records: Records) -> int:
    """Return the records of the fullest rank of each time step, added up."""
    blocks = split(schedule, records)
    fullest = [0] * schedule.num_steps
    for cell in schedule.cells:
        fullest[cell.step] = max(fullest[cell.step], len(blocks[cell.rank, cell.rotating]))
    return sum(fullest)


def _data_parallel(
    analysis: LoopAnalysis, records: Records, num_ranks: int, choice: ScheduleChoice
) -> LoopSchedule | NoSchedule:
    """Send conflicting rows through servers. Rows that a cut along one dimension separates stay with their ranks."""
    if analysis.loop.order == "given":
        return NoSchedule(reasons=("the order of the records is given, and data-parallel training changes it",))
    served: dict[Affine | None, set[str]] = {None: {one.table for one in analysis.dependences}}
    for position, dimension in enumerate(analysis.dimensions):
        served[dimension] = {one.table for one in analysis.dependences if one.distances[position] != 0}
    asked = {stay: names for stay, names in served.items() if choice.stay in {"", "" if stay is None else str(stay)}}
    stay, names = min(asked.items(), key=lambda one: _table_bytes(analysis, one[1]))
    if not names and not analysis.buffered:
        found = _one_dimension(analysis, records, num_ranks, choice)
        assert found is not None, "all distances are 0 along this dimension"
        return found
    if written := [access for access in analysis.accesses_of("ordered") if access.kind == "write"]:
        reasons = [
            f"{one.table}[{one.row}] is written at line {one.line}: servers add changes up, so change it by += or -="
            for one in written
            if one.table in names
        ]
        if reasons:
            return NoSchedule(reasons=tuple(reasons))
    return LoopSchedule(
        kind="data_parallel",
        num_ranks=num_ranks,
        stay=stay,
        stay_cuts=() if stay is None else balanced_cuts(stay.values(records), num_ranks),
        cells=single_cells(num_ranks),
        served=tuple(name for name in analysis.loop.tables if name in {*names, *analysis.buffered}),
        merge_every=choice.merge_every,
        staleness=choice.staleness,
        reason="asked for: the result is not that of a serial run",
    )


def _table_bytes(analysis: LoopAnalysis, names: set[str]) -> int:
    tables = analysis.loop.tables
    return sum(tables[name].shape[0] * tables[name].row_bytes for name in names)


def _pairs(analysis: LoopAnalysis, choice: ScheduleChoice) -> Iterator[tuple[Affine, Affine]]:
    for first, second in permutations(range(len(analysis.dimensions)), 2):
        names = str(analysis.dimensions[first]), str(analysis.dimensions[second])
        is_asked = choice.stay in {"", names[0]} and choice.rotate in {"", names[1]}
        if is_asked and all(0 in (one.distances[first], one.distances[second]) for one in analysis.dependences):
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


def _reasons(analysis: LoopAnalysis, choice: ScheduleChoice) -> Iterator[str]:
    """Yield the reasons against a schedule: a line for each dependence, or one about the order of the records."""
    if analysis.loop.order == "given" and (pairs := list(_pairs(analysis, choice))):
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
