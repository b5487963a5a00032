"""The figures by which predictions of published points are judged."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.published.points import Case, Family, Table

NEAR = 0.05
"""How much slower than the published best a pick may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A case and its predicted seconds."""

    case: Case
    predicted: float

    @property
    def error(self) -> float:
        """The predicted time over the published one, less 1."""
        return self.predicted / self.case.point.seconds - 1.0


def median_error(judged: Sequence[Judged], family: Family) -> float | None:
    """Return the median size of errors of a family; None without points."""
    errors = [abs(one.error) for one in judged if one.case.family == family]
    return median(errors) if errors else None


def kendall_tau(judged: Sequence[Judged], tables: Mapping[str, Table]) -> tuple[float | None, int]:
    """Return Kendall's tau over pairs of a cell, and their number.

    Only tables that compare strategies count, and pairs that are further apart than both readings may be off.
    """
    score = count = 0
    for cell in cells_of(judged):
        table = tables[cell[0].case.point.table]
        if not table.compares_strategies:
            continue
        least = math.log((1 + table.reading_error) / (1 - table.reading_error))
        for one, other in itertools.combinations(cell, 2):
            apart = math.log(one.case.point.seconds / other.case.point.seconds)
            if abs(apart) > least:
                difference = one.predicted - other.predicted
                score += (difference * apart > 0) - (difference * apart < 0)
                count += 1
    return (score / count if count else None), count


def near_picks(judged: Sequence[Judged]) -> tuple[float | None, int]:
    """Return the share of cells whose predicted fastest is near the published fastest, and the number of cells."""
    cells = [cell for cell in cells_of(judged) if len(cell) > 1]
    near = [picked_slowdown(cell) <= NEAR for cell in cells]
    return (sum(near) / len(near) if near else None), len(near)


def picked_slowdown(cell: Sequence[Judged]) -> float:
    """Return how much lower the published throughput of the predicted fastest is than the highest."""
    picked = min(cell, key=lambda one: one.predicted)
    return 1.0 - min(one.case.point.seconds for one in cell) / picked.case.point.seconds


def cells_of(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Return the cases of each cell, in the order of the tables."""
    found: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in judged:
        found[one.case.point.where].append(one)
    return list(found.values())
