"""The one measured rate of each cluster: the rate of a connection with which one cell is predicted as published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autosync.simulators.large_clusters import most_detailed
from benchmarks.published.points import Case

_NUM_STEPS = 14
_SLOWEST = 1e6
"""Bytes a second; no link of a cluster of GPUs is slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A cluster's rate in bytes a second, and the points that gave it, which are not judged."""

    rate: float
    given_by: tuple[Case, ...]


def predicted_seconds(case: Case, rate: float) -> float:
    """Return the predicted time of a step."""
    (found,) = most_detailed(case.model, case.cluster(rate)).predict([case.strategy])
    return found.seconds


def measured_rate(cases: Sequence[Case]) -> Measured:
    """Return the rate of a cluster from its cell in which the network matters most.

    That is the cell whose all-reduces take longest in comparison with compute. Each of these gives a rate, and the
    median counts. A cluster with one cell gives up only the points of these systems.
    """
    telling = [case for case in cases if case.family == "all-reduce"] or list(cases)
    cells = {case.point.where for case in telling}
    chosen = max(
        sorted(cells), key=lambda cell: median([_slowdown(case) for case in telling if case.point.where == cell])
    )
    givers = [case for case in telling if case.point.where == chosen]
    rate = math.exp(median([math.log(_rate_of(case)) for case in givers]))
    is_only_one = len({case.point.where for case in cases}) == 1
    left_out = givers if is_only_one else [case for case in cases if case.point.where == chosen]
    return Measured(rate=rate, given_by=tuple(left_out))


def _slowdown(case: Case) -> float:
    return case.point.seconds / case.point.compute_seconds


def _rate_of(case: Case) -> float:
    """Return the rate with which a point is predicted as published, at most what its source claims."""
    fastest = min(min(node.bandwidth_out, node.bandwidth_in) for node in case.point.claimed.nodes)
    low, high = math.log(_SLOWEST), math.log(fastest)
    for _ in range(_NUM_STEPS):
        middle = (low + high) / 2
        if predicted_seconds(case, math.exp(middle)) > case.point.seconds:
            low = middle
        else:
            high = middle
    return math.exp(high)
