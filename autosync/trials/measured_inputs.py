"""Joins what ranks say of their input, run by run, into what a record says of a mean step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosync.datasets.measured_input import PARTS, MeasuredInput

Answers = Sequence[Mapping[str, Any]]
"""The sums of one run, by rank (see `inputs.process_input`)."""


def inputs_of(answers: Sequence[Mapping[str, Any]]) -> Answers | None:
    """Return the sums in the answers of ranks; None if they have none."""
    found = [answer.get("input") for answer in answers]
    return None if None in found else [sums for sums in found if sums is not None]


def joined_sums(runs: Sequence[Mapping[str, Any]], share: float) -> dict[str, Any]:
    """Return a share of the sums of one rank's runs: that of the steps that count."""
    hosts: dict[str, list[float]] = {}
    for sums in runs:
        for host, (num_bytes, seconds) in sums["hosts"].items():
            before = hosts.get(host, [0.0, 0.0])
            hosts[host] = [before[0] + share * num_bytes, before[1] + share * seconds]
    return {part: share * sum(sums[part] for sums in runs) for part in (*PARTS, "num_batches")} | {"hosts": hosts}


def mean_input(runs: Sequence[Answers | None], num_steps: int) -> MeasuredInput | None:
    """Return the input of a mean step of runs with so many steps together; None if a run says nothing of it."""
    known = [of_run for of_run in runs if of_run]
    if not known or len(known) < len(runs):
        return None
    means = {
        part: tuple(sum(float(sums[part]) for sums in of_rank) / num_steps for of_rank in zip(*known, strict=True))
        for part in PARTS
    }
    everything = [sums for of_run in known for sums in of_run]
    if not any(sums["num_batches"] for sums in everything):
        # No batch came from a loader of ours, so it is not known how they were made.
        means = {part: seconds for part, seconds in means.items() if part in ("wait_seconds", "copy_seconds")}
    served: dict[str, tuple[float, float]] = {}
    for sums in everything:
        for host, (num_bytes, seconds) in sums["hosts"].items():
            before = served.get(host, (0.0, 0.0))
            served[host] = before[0] + num_bytes, before[1] + seconds
    rates = {host: size / seconds for host, (size, seconds) in sorted(served.items()) if size > 0 and seconds > 0}
    in_step = all(sums.get("in_step", False) for sums in everything)
    return MeasuredInput(**means, request_rates=rates, in_step=in_step)
