"""What a dataset holds, in numbers: how many of what, how noisy, and what the best strategies gain."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autosync.datasets.drift import REFERENCE_ORIGIN
from autosync.datasets.schema import Measurement, Record, seconds_of_steps

NOISE_LIMIT = 0.05
STOCK_ORIGIN = "baseline:torch_ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationStats:
    """One model on one cluster. Seconds are of measured records without flags; None where there are none.

    `speedup` is how many times as fast as stock DDP the fastest is (where stock DDP has none but flagged records, as
    those); None where either is not there.
    """

    model: str
    cluster: str
    num_records: int
    num_measured: int
    num_flagged: int
    num_sampled: int
    fastest_seconds: float | None
    median_seconds: float | None
    slowest_seconds: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A dataset. `noise` are the coefficients of variation of steps: the median and the 95th percentile of records.

    `quiet_share` is the share of measured records whose coefficient is below 5 %.
    """

    num_records: int
    num_measured: int
    num_failed: int
    num_references: int
    num_flagged: int
    flags: Mapping[str, int]
    failures: Mapping[str, int]
    origins: Mapping[str, int]
    models: Mapping[str, int]
    clusters: Mapping[str, int]
    synchronisers: Mapping[str, int]
    noise_median: float | None
    noise_percentile_95: float | None
    quiet_share: float | None
    combinations: tuple[CombinationStats, ...]


def dataset_stats(records: Iterable[Record]) -> Stats:
    """The numbers of a dataset."""
    everything = list(records)
    measurements = [record.measurement for record in everything if record.measurement is not None]
    noise = sorted(variation(one) for one in measurements)
    return Stats(
        num_records=len(everything),
        num_measured=len(measurements),
        num_failed=len(everything) - len(measurements),
        num_references=sum(record.origin == REFERENCE_ORIGIN for record in everything),
        num_flagged=sum(bool(one.flags) for one in measurements),
        flags=_counted(flag for one in measurements for flag in one.flags),
        failures=_counted(record.failure.kind for record in everything if record.failure is not None),
        origins=_counted(record.origin for record in everything),
        models=_counted(record.model_name for record in everything),
        clusters=_counted(record.cluster_name for record in everything),
        synchronisers=_counted(kind for record in everything for kind in synchronisers(record)),
        noise_median=statistics.median(noise) if noise else None,
        noise_percentile_95=noise[min(len(noise) - 1, int(0.95 * len(noise)))] if noise else None,
        quiet_share=sum(one < NOISE_LIMIT for one in noise) / len(noise) if noise else None,
        combinations=tuple(_combination(*names, found) for names, found in sorted(_by_names(everything).items())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The medians of one model on one cluster, of measured records without flags.

    `stock_seconds` is what stock DDP takes; where all its records are flagged, by those.
    """

    model: str
    cluster: str
    seconds: tuple[float, ...]
    stock_seconds: float | None


def step_times(records: Iterable[Record]) -> tuple[StepTimes, ...]:
    """The step times of each combination, by the names of models and clusters."""
    by_names = _by_names(records)
    return tuple(_step_times(*names, found) for names, found in sorted(by_names.items()))


def _by_names(records: Iterable[Record]) -> Mapping[tuple[str, str], list[Record]]:
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.model_name, record.cluster_name].append(record)
    return found


def _step_times(model: str, cluster: str, records: Iterable[Record]) -> StepTimes:
    measured = [(record.origin, record.measurement) for record in records if record.measurement is not None]
    stock = [measurement for origin, measurement in measured if origin == STOCK_ORIGIN]
    chosen = [measurement.median_seconds for measurement in [one for one in stock if not one.flags] or stock]
    return StepTimes(
        model=model,
        cluster=cluster,
        seconds=tuple(measurement.median_seconds for _, measurement in measured if not measurement.flags),
        stock_seconds=statistics.median(chosen) if chosen else None,
    )


def variation(measurement: Measurement) -> float:
    """The coefficient of variation of what a trial's steps took."""
    seconds = seconds_of_steps(measurement.step_seconds)
    return statistics.stdev(seconds) / statistics.fmean(seconds) if len(seconds) > 1 else 0.0


def synchronisers(record: Record) -> set[str]:
    """The kinds of synchroniser that a record's strategy has in it."""
    messages = (record.strategy or {}).get("messages", ())
    if not isinstance(messages, Sequence):
        return set()
    found = (message.get("synchroniser") for message in messages if isinstance(message, Mapping))
    # What a strategy file leaves out is all-reduce.
    return {str(one.get("kind", "all_reduce")) if isinstance(one, Mapping) else "all_reduce" for one in found}


def _combination(model: str, cluster: str, records: Sequence[Record]) -> CombinationStats:
    measured = [record for record in records if record.measurement is not None]
    flagged = [record for record in measured if record.measurement is not None and record.measurement.flags]
    times = _step_times(model, cluster, measured)
    seconds = times.seconds
    return CombinationStats(
        model=model,
        cluster=cluster,
        num_records=len(records),
        num_measured=len(measured),
        num_flagged=len(flagged),
        num_sampled=sum(record.origin == "sampled" for record in measured),
        fastest_seconds=min(seconds, default=None),
        median_seconds=statistics.median(seconds) if seconds else None,
        slowest_seconds=max(seconds, default=None),
        speedup=times.stock_seconds / min(seconds) if times.stock_seconds is not None and seconds else None,
    )


def _counted(values: Iterable[str]) -> Mapping[str, int]:
    """How often each is there, the most frequent first."""
    return dict(Counter(values).most_common())
