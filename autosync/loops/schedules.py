"""Schedules as data: the rank and the time step of each block of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autosync.loops.affine import Affine

ScheduleKind = Literal["serial", "independent", "one_dimension", "two_dimensions", "wavefront"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A rank's work in one time step: the records of its own block and of one rotating block."""

    step: int
    rank: int
    rotating: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSchedule:
    """Blocks of records, and the time step and rank of each, for one epoch.

    Records are cut along `stay` into a block for each rank, and along `rotate` into blocks that go round the ranks. The
    cuts are the first values of all blocks except the first. Without `stay`, records are cut by their positions.
    """

    kind: ScheduleKind
    num_ranks: int
    stay: Affine | None = None
    stay_cuts: tuple[int, ...] = ()
    rotate: Affine | None = None
    rotate_cuts: tuple[int, ...] = ()
    cells: tuple[Cell, ...]
    reason: str

    @property
    def num_rotating(self) -> int:
        """The number of rotating blocks; 1 if none rotates."""
        return len(self.rotate_cuts) + 1

    @property
    def num_steps(self) -> int:
        return max(cell.step for cell in self.cells) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSchedule:
    """No schedule keeps the serial result. `reasons` has a line for each dependence that prevents one."""

    reasons: tuple[str, ...]


def rotation_cells(num_ranks: int, num_rotating: int) -> tuple[Cell, ...]:
    """Return cells in which every rank works on every block once, and no two ranks on the same block at a time.

    With two blocks for each rank, a block has a whole time step to travel.
    """
    stride = num_rotating // num_ranks
    return tuple(
        Cell(step=step, rank=rank, rotating=(stride * rank + step) % num_rotating)
        for step in range(num_rotating)
        for rank in range(num_ranks)
    )


def wavefront_cells(num_ranks: int, num_rotating: int) -> tuple[Cell, ...]:
    """Return cells in which a block goes from the first rank to the last, so that smaller values come first."""
    cells = [
        Cell(step=rank + block, rank=rank, rotating=block) for rank in range(num_ranks) for block in range(num_rotating)
    ]
    return tuple(sorted(cells, key=lambda cell: (cell.step, cell.rank)))


def single_cells(num_ranks: int) -> tuple[Cell, ...]:
    """Return cells of a single time step for all ranks."""
    return tuple(Cell(step=0, rank=rank) for rank in range(num_ranks))
