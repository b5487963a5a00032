"""When a search has found what there is: rules that end it early, each with its reason in words."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.datasets.schema import Record

NEAR_BOUND = 1.02
"""Within this factor of the bound there is nothing to gain that a user would notice."""

LEAST_GAIN = 0.005
"""A trial that is faster by less brought nothing: it may be noise."""


def why_stop(records: Sequence[Record], *, bound_seconds: float | None, patience: int) -> str | None:
    """Why no further gain is likely, if so. So many trials without a gain as `patience` are enough; with 0 none are.

    `bound_seconds` is what nothing that may be tried can beat, None where no such bound is known.
    """
    seconds = [record.measurement.median_seconds for record in records if record.measurement is not None]
    if not seconds:
        return None
    if bound_seconds is not None and min(seconds) <= NEAR_BOUND * bound_seconds:
        share = 100 * (min(seconds) / bound_seconds - 1)
        return f"no strategy can be much faster: the best is {max(share, 0.0):.1f} % above what the links allow"
    num_idle = _num_without_gain(records)
    if 0 < patience <= num_idle:
        return f"no further gain is likely: {num_idle} trials have brought none since the last that did"
    return None


def _num_without_gain(records: Sequence[Record]) -> int:
    """How many trials have ended since one was faster than all before by more than noise.

    Where other programs kept the machine busy, a trial that brought nothing may have been good: it does not count.
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
