"""The picture of a schedule: a row for each rank, a column for each time step, a colour for each travelling block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autosync.loops.schedules import Cell, LoopSchedule
from autosync.pictures.svg import Drawing, Pen
from autosync.pictures.theme import NUM_COLOURS

MAX_RANKS = 16
MAX_STEPS = 32
"""A picture shows these first ranks and time steps."""

_MARGIN = 18.0
_LABEL = 74.0
_WIDTH = 76.0
_HEIGHT = 34.0
_GAP = 20.0
_TOP = 82.0


def schedule_picture(schedule: LoopSchedule, *, title: str) -> str:
    """Return the picture of a schedule as SVG."""
    drawing = Drawing()
    cells = [cell for cell in schedule.cells if cell.rank < MAX_RANKS and cell.step < MAX_STEPS]
    num_ranks = max(cell.rank for cell in cells) + 1
    num_steps = max(cell.step for cell in cells) + 1
    drawing.text(_MARGIN, 30, title, "head ink")
    drawing.text(_MARGIN, 49, _subtitle(schedule), "soft")
    for step in range(num_steps):
        drawing.text(_x(step) + _WIDTH / 2, _TOP - 10, f"step {step}", "small soft", anchor="middle")
    for rank in range(num_ranks):
        drawing.text(_MARGIN, _y(rank) + _HEIGHT / 2 + 4, f"rank {rank}", "ink bold")
    if schedule.rotate is not None:
        _ways(drawing, cells)
    for cell in cells:
        _draw(drawing, cell, schedule)
    width = _x(num_steps - 1) + _WIDTH + _MARGIN
    height = _y(num_ranks - 1) + _HEIGHT + _MARGIN
    description = f"{schedule.num_ranks} ranks in {schedule.num_steps} time steps. {schedule.reason}."
    return drawing.svg(max(width, 420.0), height, title=title, description=description)


def _subtitle(schedule: LoopSchedule) -> str:
    stays = "" if schedule.stay is None else f"each rank keeps a block of {schedule.stay}; "
    if schedule.rotate is None:
        return f"{stays}all ranks work at the same time"
    return f"{stays}a colour is a block of {schedule.rotate}"


def _x(step: int) -> float:
    return _MARGIN + _LABEL + step * (_WIDTH + _GAP)


def _y(rank: int) -> float:
    return _TOP + rank * (_HEIGHT + _GAP)


def _draw(drawing: Drawing, cell: Cell, schedule: LoopSchedule) -> None:
    corner = (_x(cell.step), _y(cell.rank))
    drawing.rectangle(corner, (_WIDTH, _HEIGHT), f"fill-{cell.rotating % NUM_COLOURS}", radius=5)
    words = "all" if schedule.rotate is None else f"block {cell.rotating}"
    drawing.text(corner[0] + _WIDTH / 2, corner[1] + _HEIGHT / 2 + 4, words, "on", anchor="middle")


def _ways(drawing: Drawing, cells: Sequence[Cell]) -> None:
    """Draw the way of each block from a rank to the next one."""
    ordered = sorted(cells, key=lambda cell: (cell.rotating, cell.step))
    for cell, after in itertools.pairwise(ordered):
        if cell.rotating != after.rotating or cell.rank == after.rank:
            continue
        start = (_x(cell.step) + _WIDTH, _y(cell.rank) + _HEIGHT / 2)
        end = (_x(after.step), _y(after.rank) + _HEIGHT / 2)
        style = f"line-{cell.rotating % NUM_COLOURS}"
        drawing.line(start, end, style)
        drawing.path(Pen().chevron(*end, (end[0] - start[0], end[1] - start[1]), 4.0), style)
