"""The reliability of records, and the choice among several trials of a strategy."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from autosync.datasets.machine_drift import AGAIN_ORIGIN, REFERENCE_ORIGIN, combination_of
from autosync.datasets.schema import Flag, Measurement, Record, seconds_of_steps

NOISE_LIMIT = 0.05
"""The variation, as a share of their mean, above which steps are noisy."""

DISTURBED: frozenset[Flag] = frozenset({"busy_cpu", "busy_machine", "drifting_machine"})
"""Flags of trials that were influenced by something besides the strategy and the cluster."""


def is_disturbed(record: Record) -> bool:
    """Return whether a record's flags say that its trial was disturbed."""
    return record.measurement is not None and not DISTURBED.isdisjoint(record.measurement.flags)


def is_worth_repeating(record: Record) -> bool:
    """Return whether another trial of the strategy would probably give a better figure.

    This holds if the record has a flag or noisy steps. But a strategy that keeps the processors busy does so every
    time, so another trial would not help.
    """
    measurement = record.measurement
    if measurement is None or "busy_cpu" in measurement.flags:
        return False
    return bool(measurement.flags) or variation(measurement) >= NOISE_LIMIT


def most_reliable(records: Iterable[Record]) -> Record:
    """Return the record with the fewest flags and, among equals, with the steadiest steps.

    The time itself plays no part, so the choice makes no strategy look faster. Failed trials come last.
    """
    return min(records, key=_unreliability)


def best_of_repeats(records: Iterable[Record]) -> list[Record]:
    """Return the most reliable trial of each strategy, and every trial of strategies that are repeated on purpose."""
    trials: dict[object, list[Record]] = {}
    for record in records:
        is_repeated = record.origin in (REFERENCE_ORIGIN, AGAIN_ORIGIN)
        key = (record.study, combination_of(record), record.origin, record.strategy_id)
        trials.setdefault((*key, record.trial) if is_repeated else key, []).append(record)
    return [most_reliable(repeats) for repeats in trials.values()]


def _unreliability(record: Record) -> tuple[bool, int, float]:
    measurement = record.measurement
    if measurement is None:
        return True, 0, 0.0
    return False, len(measurement.flags), variation(measurement)


def variation(measurement: Measurement) -> float:
    """Return the standard deviation of a trial's step times, as a share of their mean."""
    seconds = seconds_of_steps(measurement.step_seconds)
    return statistics.stdev(seconds) / statistics.fmean(seconds) if len(seconds) > 1 else 0.0
