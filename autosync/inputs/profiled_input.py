"""Measures the input of a model: what an example costs, and what a step waits for beside the model's compute."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autosync import units
from autosync.inputs.loader import loader
from autosync.inputs.many_workers import many_workers_allowed
from autosync.inputs.observation import InputReport
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.input_settings import input_in_words
from autosync.strategy.wording import format_table

PROFILE_SECONDS = 5.0
_LEAST_STEPS = 6
_MOST_STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledInput:
    """What was measured: the cost of an example, and the report of a loader whose steps computed as the model does."""

    cost: InputCost
    report: InputReport
    settings: InputSettings

    def in_words(self) -> str:
        """Return the waits of a step, the work on its batch, and what hosts gave, in some lines."""
        report = self.report
        count = max(report.num_steps, 1)
        sums = {
            part: sum(getattr(one, f"{part}_seconds") for one in report.workers) / count
            for part in ("read", "decode", "collate")
        }
        work = ", ".join(f"{part} {units.format_time(seconds)}" for part, seconds in sums.items())
        size = units.format_size(self.cost.example_bytes)
        waits = units.format_time(report.median_wait_seconds)
        lines = [
            f"input: {input_in_words(self.settings)}; a step waits {waits} for its batch (median)",
            f"work on a batch: {work} (decode includes transforms)",
            f"an example: {size} read, {units.format_time(self.cost.worker_seconds)} of a worker",
        ]
        if report.hosts:
            rows = [
                (
                    host,
                    units.format_size(one.num_bytes),
                    str(one.num_requests),
                    f"{units.format_size(one.num_bytes / max(one.request_seconds, 1e-9))}/s",
                    str(one.num_retries),
                )
                for host, one in sorted(report.hosts.items())
            ]
            header = ("host", "read", "requests", "one request", "retries")
            lines.append(format_table(rows, header=header, right=header[1:]))
        return "\n".join(lines)


def profile_input(
    dataset: Any,
    model: ModelSpec,
    settings: InputSettings,
    *,
    seconds: float = PROFILE_SECONDS,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> ProfiledInput:
    """Read batches of the model's size for some seconds; each step sleeps for the time that the model computes.

    Examples are read in any order, from a first epoch on. Bytes from disks of this machine are none of its interface.
    """
    with many_workers_allowed():
        running = loader(dataset, settings, batch_size=model.batch_size, collate_fn=collate_fn, rank=0, world_size=1)
        until, num_steps = time.perf_counter() + seconds, 0
        while num_steps < _LEAST_STEPS or (time.perf_counter() < until and num_steps < _MOST_STEPS):
            for _ in running:
                num_steps += 1
                time.sleep(model.step_seconds / model.accumulation_steps)
                if num_steps >= _LEAST_STEPS and time.perf_counter() >= until:
                    break
    report = running.report()
    return ProfiledInput(cost=cost_of(report), report=report, settings=settings)


def cost_of(report: InputReport) -> InputCost:
    """Return what an example has cost: bytes from other hosts, and the work of a worker on it."""
    # Files of this machine are read from its disks.
    num_bytes = sum(one.num_bytes for host, one in report.hosts.items() if host != socket.gethostname())
    work = sum(one.decode_seconds + one.collate_seconds for one in report.workers)
    count = max(report.num_examples, 1)
    cpu = min(sum(one.cpu_seconds for one in report.workers), work)
    return InputCost(example_bytes=num_bytes / count, worker_seconds=work / count, cpu_seconds=cpu / count)
