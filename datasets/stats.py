"""The numbers of a dataset: the records of each kind, their noise, and the gains of the best strategies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from autosync.datasets.frame import to_frame
from autosync.datasets.machine_drift import REFERENCE_ORIGIN
from autosync.datasets.reliability import NOISE_LIMIT, variation
from autosync.datasets.schema import Record

STOCK_ORIGIN = "baseline:torch_ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationStats:
    """The numbers of one model on one cluster. Seconds are of measured records without flags, None if there are none.

    If all measured records are flagged, seconds are of these, and `is_all_flagged` is true. `speedup` is stock DDP's
    time over the fastest time, None if either is missing.
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
    is_all_flagged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The numbers of a dataset.

    The noise figures are the median and the 95th percentile of `variation` over measured records. `quiet_share` is the
    share of measured records whose variation is below `NOISE_LIMIT`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The median step times of one model on one cluster, of measured records without flags.

    `stock_seconds` is the time of stock DDP: by its records without flags if it has any, else by all of them.
    """

    model: str
    cluster: str
    seconds: tuple[float, ...]
    stock_seconds: float | None


def dataset_stats(records: Iterable[Record]) -> Stats:
    """Return the numbers of a dataset."""
    frame = _frame(records)
    noise = frame["noise"].dropna()
    is_known = len(noise) > 0
    return Stats(
        num_records=len(frame),
        num_measured=len(noise),
        num_failed=len(frame) - len(noise),
        num_references=int((frame["origin"] == REFERENCE_ORIGIN).sum()),
        num_flagged=int(frame["is_flagged"].sum()),
        flags=_counted(frame["flags"].explode()),
        failures=_counted(frame["failure_kind"]),
        origins=_counted(frame["origin"]),
        models=_counted(frame["model_name"]),
        clusters=_counted(frame["cluster_name"]),
        synchronisers=_counted(frame["synchronisers"].explode()),
        noise_median=float(noise.median()) if is_known else None,
        noise_percentile_95=float(noise.quantile(0.95, interpolation="higher")) if is_known else None,
        quiet_share=float((noise < NOISE_LIMIT).mean()) if is_known else None,
        combinations=tuple(_combination(*names, rows) for names, rows in _by_names(frame)),
    )


def step_times(records: Iterable[Record]) -> tuple[StepTimes, ...]:
    """Return the step times of each combination, by the names of models and clusters."""
    return tuple(
        StepTimes(
            model=model,
            cluster=cluster,
            seconds=tuple(_unflagged(rows).tolist()),
            stock_seconds=_stock_seconds(rows),
        )
        for (model, cluster), rows in _by_names(_frame(records))
    )


def synchronisers(record: Record) -> set[str]:
    """Return the kinds of synchroniser in a record's strategy."""
    messages = (record.strategy or {}).get("messages", ())
    if not isinstance(messages, Sequence):
        return set()
    written = (message.get("synchroniser") for message in messages if isinstance(message, Mapping))
    # A strategy file may leave all-reduce out.
    return {str(one.get("kind", "all_reduce")) if isinstance(one, Mapping) else "all_reduce" for one in written}


def _frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return the table of the records, with the additional columns that are counted here."""
    everything = list(records)
    frame = to_frame(everything)
    frame["is_flagged"] = [record.measurement is not None and bool(record.measurement.flags) for record in everything]
    frame["noise"] = [None if one.measurement is None else variation(one.measurement) for one in everything]
    frame["synchronisers"] = [sorted(synchronisers(record)) for record in everything]
    for kind in ("model", "cluster"):
        # Two models may share a name. Their hashes are added to it, because their step times must not be compared.
        name, spec_id = frame[f"{kind}_name"], frame[f"{kind}_spec"].fillna(frame[f"{kind}_fingerprint"])
        is_shared = spec_id.groupby(name).transform("nunique") > 1
        frame[kind] = name.where(~is_shared, name + " (" + spec_id.str[:8] + ")")
    return frame


def _by_names(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Yield the rows of each combination, by the names of its model and cluster."""
    for (model, cluster), rows in frame.groupby(["model", "cluster"]):
        yield (str(model), str(cluster)), rows


def _combination(model: str, cluster: str, rows: pd.DataFrame) -> CombinationStats:
    seconds, stock_seconds = _unflagged(rows), _stock_seconds(rows)
    measured = rows["median_seconds"].dropna()
    is_known, is_all_flagged = len(measured) > 0, len(measured) > 0 and len(seconds) == 0
    if is_all_flagged:
        seconds = measured
    return CombinationStats(
        model=model,
        cluster=cluster,
        num_records=len(rows),
        num_measured=int(rows["median_seconds"].count()),
        num_flagged=int(rows["is_flagged"].sum()),
        num_sampled=int(rows["median_seconds"][rows["origin"] == "sampled"].count()),
        fastest_seconds=float(seconds.min()) if is_known else None,
        median_seconds=float(seconds.median()) if is_known else None,
        slowest_seconds=float(seconds.max()) if is_known else None,
        speedup=stock_seconds / float(seconds.min()) if stock_seconds is not None and is_known else None,
        is_all_flagged=is_all_flagged,
    )


def _unflagged(rows: pd.DataFrame) -> pd.Series[float]:
    return rows["median_seconds"][~rows["is_flagged"]].dropna()


def _stock_seconds(rows: pd.DataFrame) -> float | None:
    stock = rows[rows["origin"] == STOCK_ORIGIN]
    seconds = _unflagged(stock)
    seconds = seconds if len(seconds) else stock["median_seconds"].dropna()
    return float(seconds.median()) if len(seconds) else None


def _counted(values: pd.Series[str]) -> Mapping[str, int]:
    """Return how often each value occurs, the most frequent first."""
    return {str(value): int(count) for value, count in values.value_counts().items()}
