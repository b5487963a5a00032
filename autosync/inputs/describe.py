"""Puts shards, storage rates and tuning runs into words and into fields of JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from autosync import units
from autosync.inputs.intervals import RateInterval
from autosync.inputs.settings import KIND, VERSION
from autosync.inputs.storage_rates import StorageRate
from autosync.inputs.tar_shards import TarShards
from autosync.inputs.trial import InputTrial
from autosync.inputs.tuning import InputTuning
from autosync.specs.input_settings import InputSettings
from autosync.strategy.bundle import Bundle
from autosync.strategy.input_settings import input_in_words
from autosync.strategy.wording import count, format_table


def describe_reads(settings: InputSettings) -> str:
    """Return how a reader of autosync reads under settings: `4 x 1 MiB`."""
    return f"{settings.read_concurrency} x {units.exact_size(settings.read_bytes)}"


def describe_trial(trial: InputTrial) -> str:
    """Return one line about a trial."""
    words = f"trial {trial.number + 1}: {input_in_words(trial.settings)}, reads {describe_reads(trial.settings)}"
    return f"{words}: {trial.failure or format_rate(trial.rate)}"


def format_rate(rate: RateInterval | None) -> str:
    """Return a rate of examples with its interval."""
    return "" if rate is None else f"{rate.value:.4g} examples/s ({rate.low:.4g} to {rate.high:.4g})"


def describe_tuning(tuning: InputTuning) -> str:
    """Return the trials as a table and the settings that were found."""
    rows = [
        (
            str(trial.number + 1),
            input_in_words(trial.settings),
            describe_reads(trial.settings),
            "failed" if trial.rate is None else f"{trial.rate.value:.4g}",
            "" if trial.rate is None else f"{trial.rate.low:.4g} to {trial.rate.high:.4g}",
            "" if trial.rate is None else units.format_time(trial.wait_seconds),
            trial.bottleneck,
        )
        for trial in tuning.trials
    ]
    header = ("trial", "settings", "reads", "examples/s", "95 % interval", "wait/step", "most time")
    table = format_table(rows, header=header, right=("trial", "examples/s", "wait/step"))
    failures = [f"trial {one.number + 1} failed: {one.failure}" for one in tuning.trials if one.failure]
    found = f"found: {input_in_words(tuning.settings)}, reads {describe_reads(tuning.settings)}"
    return "\n".join([table, "", *failures, found, f"all its trials together: {format_rate(tuning.rate)}"])


def tuning_fields(tuning: InputTuning) -> dict[str, Any]:
    """Return a tuning run as the fields of one JSON document."""
    return {
        "schema": "autosync.input_tuning/1",
        "settings": settings_fields(tuning.settings),
        "examples_per_second": dataclasses.asdict(tuning.rate),
        "trials": [
            {
                "number": trial.number + 1,
                "settings": settings_fields(trial.settings),
                "examples_per_second": None if trial.rate is None else dataclasses.asdict(trial.rate),
                "wait_seconds": trial.wait_seconds,
                "first_seconds": trial.first_seconds,
                "num_steps": len(trial.step_counts),
                "bottleneck": trial.bottleneck,
                "failure": trial.failure,
            }
            for trial in tuning.trials
        ],
    }


def settings_fields(settings: InputSettings) -> dict[str, Any]:
    """Return settings with every field, as the fields of their file."""
    return {"schema": f"autosync.{KIND}/{VERSION}", **dataclasses.asdict(settings)}


def describe_shards(shards: TarShards) -> str:
    """Return a table of shards with their samples and fields."""
    rows = [
        (one.url, units.format_size(one.num_bytes), f"{one.num_samples:,}", ", ".join(one.field_names))
        for one in shards.facts()
    ]
    total = f"{count(len(shards), 'sample')} in {count(len(rows), 'shard')}"
    table = format_table(rows, header=("shard", "size", "samples", "fields"), right=("size", "samples"))
    return f"{total}, {units.format_size(sum(shards.shard_bytes))}\n\n{table}"


def shards_fields(shards: TarShards) -> dict[str, Any]:
    """Return shards as the fields of one JSON document."""
    facts = [dataclasses.asdict(one) for one in shards.facts()]
    return {"schema": "autosync.input_shards/1", "num_samples": len(shards), "shards": facts}


def describe_dealing(bundle: Bundle) -> str:
    """Return a table of the worker ranks of a bundle, with the rate that storage gives each and its share."""
    rows = [
        (str(row["rank"]), row["node"], units.format_rate(row["bytes_per_second"]), str(row["num_examples"]))
        for row in _dealt(bundle)
    ]
    return format_table(rows, header=("rank", "node", "storage", "examples a step"), right=("rank", "examples a step"))


def dealing_fields(bundle: Bundle) -> dict[str, Any]:
    """Return what describe_dealing shows as the fields of one JSON document."""
    return {"schema": "autosync.input_dealing/1", "strategy_id": bundle.strategy_id, "ranks": list(_dealt(bundle))}


def _dealt(bundle: Bundle) -> Iterator[dict[str, Any]]:
    cluster = bundle.cluster
    shares = bundle.strategy.shares or (bundle.model.batch_size,) * cluster.num_workers
    for rank, share in zip(cluster.ranks, shares, strict=False):
        node = cluster.nodes[rank.node]
        rate = (node.storage or node.bandwidth_in) / node.devices
        yield {"rank": rank.index, "node": node.name, "bytes_per_second": rate, "num_examples": share}


def describe_rates(rates: Sequence[StorageRate]) -> str:
    """Return the rates of a storage as a table, with the fastest below it."""
    rows = [
        (
            units.exact_size(one.read_bytes),
            str(one.read_concurrency),
            f"{units.format_size(one.rate.value)}/s",
            f"{units.format_size(one.rate.low)}/s to {units.format_size(one.rate.high)}/s",
            units.format_time(one.request_seconds),
            str(one.num_retries),
        )
        for one in rates
    ]
    header = ("request", "at a time", "rate", "95 % interval", "one request", "retries")
    right = ("request", "at a time", "rate", "one request", "retries")
    best = max(rates, key=lambda one: one.rate.value)
    words = f"fastest: {best.read_concurrency} requests of {units.exact_size(best.read_bytes)} at a time"
    return f"{format_table(rows, header=header, right=right)}\n\n{words}"


def rates_fields(rates: Sequence[StorageRate]) -> dict[str, Any]:
    """Return the rates of a storage as the fields of one JSON document."""
    return {"schema": "autosync.storage_rates/1", "rates": [dataclasses.asdict(one) for one in rates]}
