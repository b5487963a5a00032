"""Records that something disturbed, doubtful ones, and of several trials of a strategy the one to believe."""

from __future__ import annotations

from collections.abc import Iterable

from autosync.datasets.drift import AGAIN_ORIGIN, REFERENCE_ORIGIN, combination_of
from autosync.datasets.schema import Flag, Record
from autosync.datasets.stats import NOISE_LIMIT, variation

DISTURBED: frozenset[Flag] = frozenset({"busy_cpu", "busy_machine", "drifting_machine"})
"""Flags of trials during which something had a say that is not the strategy and not the cluster."""


def is_disturbed(record: Record) -> bool:
    """Whether a record's trial was disturbed, by its flags."""
    return record.measurement is not None and not DISTURBED.isdisjoint(record.measurement.flags)


def is_doubtful(record: Record) -> bool:
    """Whether a measured record has a flag, or steps that differ by more than `NOISE_LIMIT`.

    What keeps the processors busy does so again: nothing is to be hoped of another trial of it.
    """
    measurement = record.measurement
    if measurement is None or "busy_cpu" in measurement.flags:
        return False
    return bool(measurement.flags) or variation(measurement) >= NOISE_LIMIT


def least_doubtful(records: Iterable[Record]) -> Record:
    """The trial with the fewest flags; of those with as many the one whose steps differ least.

    How fast it was plays no part, so choosing makes no strategy faster than it is. A trial that failed is the last.
    """
    return min(records, key=_doubt)


def without_doubles(records: Iterable[Record]) -> list[Record]:
    """Of each strategy that was measured again for doubt the least doubtful trial; all that are repeated on purpose."""
    trials: dict[object, list[Record]] = {}
    for record in records:
        is_repeated = record.origin in (REFERENCE_ORIGIN, AGAIN_ORIGIN)
        key = (record.study, combination_of(record), record.origin, record.strategy_id)
        trials.setdefault((*key, record.trial) if is_repeated else key, []).append(record)
    return [least_doubtful(found) for found in trials.values()]


def _doubt(record: Record) -> tuple[bool, int, float]:
    measurement = record.measurement
    if measurement is None:
        return True, 0, 0.0
    return False, len(measurement.flags), variation(measurement)
