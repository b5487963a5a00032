"""The rules that end a search early, each with its reason in words."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.datasets.schema import Record
from autosync.plan.bound_terms import holds

NEAR_BOUND = 1.02
"""The factor above the bound within which a user would not notice any further gain."""

LEAST_GAIN = 0.005
"""The smallest share that counts as a gain; a smaller one may be noise."""


def why_stop(records: Sequence[Record], *, bound_seconds: float | None, patience: int) -> str | None:
    """Return why no further gain is likely; None if one may be.

    `patience` is the number of trials without a gain that ends a search; 0 means no limit. `bound_seconds` is the time
    that no allowed strategy can beat; None if no such bound is known. A bound that a measured step refutes ends no
    search.
    """
    seconds = [record.measurement.median_seconds for record in records if record.measurement is not None]
    if not seconds:
        return None
    if bound_seconds is not None and min(seconds) <= NEAR_BOUND * bound_seconds and holds(bound_seconds, min(seconds)):
        share = 100 * (min(seconds) / bound_seconds - 1)
        return f"no strategy can be much faster: the best is {max(share, 0.0):.1f} % above what the links allow"
    num_idle = _num_without_gain(records)
    if 0 < patience <= num_idle:
        return f"no further gain is likely: {num_idle} trials have brought none since the last that did"
    return None


def _num_without_gain(records: Sequence[Record]) -> int:
    """Return how many trials have ended since the last gain that exceeded noise.

    A trial without a gain does not count if other programs kept the machine busy, because its strategy may be good.
    """
    best = float("inf")
    idle = 0
    for record in records:
        measured = record.measurement
        if measured is None or "busy_machine" not in measured.flags:
            idle += 1
        if measured is not None and measured.median_seconds < best * (1 - LEAST_GAIN):
            best = measured.median_seconds
            idle = 0
    return idle
