"""Schedules as data: the rank and the time step of each block of records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autosync.documents import STRICT
from autosync.errors import InputError, Problem
from autosync.loops.affine import Affine

ScheduleKind = Literal[
    "serial", "independent", "one_dimension", "two_dimensions", "wavefront", "skewed", "data_parallel"
]

BLOCKS_PER_RANK = 2
"""The number of rotating blocks for each rank: it works on one while the other one travels."""

MAX_BLOCKS_PER_RANK = 1024
MAX_STALENESS = 64
"""The most that a schedule may ask for: blocks and changes that wait are kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChoice:
    """The user's or the tuner's part in a schedule. The defaults ask for a schedule with the serial result.

    `stay` and `rotate` are dimensions as text, such as "user"; an empty text leaves the choice to autosync.
    `blocks_per_rank` is the number of rotating blocks for each rank. `on_one_rank` leaves the other ranks idle.

    `data_parallel` changes the result: rows that ranks share go through servers. A rank sends its changes after every
    `merge_every` of its records, and reads the changes of all ranks up to `staleness` of its own merges later.
    """

    __pydantic_config__ = STRICT

    data_parallel: bool = False
    on_one_rank: bool = False
    stay: str = ""
    rotate: str = ""
    blocks_per_rank: int = BLOCKS_PER_RANK
    merge_every: int = 1000
    staleness: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("blocks_per_rank", 1, MAX_BLOCKS_PER_RANK),
            ("merge_every", 1, math.inf),
            ("staleness", 0, MAX_STALENESS),
        ):
            number = getattr(self, name)
            if not least <= number <= most:
                rule = f"a whole number of {least} or more" if math.isinf(most) else f"{least} to {most}"
                raise InputError([Problem(what=f"is {number}", rule=rule, path=(name,))])


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

    In a skewed schedule, rows belong to no block: messages bring each change to the ranks that need it.

    The rows of `served` tables go through servers: changes after every `merge_every` records, see `ScheduleChoice`.
    """

    kind: ScheduleKind
    num_ranks: int
    stay: Affine | None = None
    stay_cuts: tuple[int, ...] = ()
    rotate: Affine | None = None
    rotate_cuts: tuple[int, ...] = ()
    cells: tuple[Cell, ...]
    served: tuple[str, ...] = ()
    merge_every: int = 0
    staleness: int = 0
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
