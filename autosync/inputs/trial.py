"""One trial of input settings: a loader delivers batches for a while, and each step is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autosync.inputs.epoch_order import Shuffle
from autosync.inputs.intervals import RateInterval, rate_interval
from autosync.inputs.loader import loader
from autosync.inputs.many_workers import many_workers_allowed
from autosync.specs.input_settings import InputSettings

_MIN_STEPS = 4
_MAX_STRETCH = 4.0
"""A trial of few, slow steps may take so many times its seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWork:
    """What is tuned: a dataset and its batches, and the time that a step computes between two of them.

    `prepare` is called before each trial, for instance to empty a cache.
    """

    dataset: Any
    batch_size: int
    collate_fn: Callable[[list[Any]], Any] | None = None
    shuffle: Shuffle = "examples"
    seed: int = 0
    compute_seconds: float = 0.0
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTrial:
    """The result of one trial: a rate in examples a second, or a failure.

    `wait_seconds` is the mean wait of a step, and `first_seconds` the time until the first batch. `step_counts` and
    `step_seconds` are the examples and the time of each measured step.
    """

    number: int
    settings: InputSettings
    rate: RateInterval | None = None
    wait_seconds: float = 0.0
    first_seconds: float = 0.0
    bottleneck: str = ""
    failure: str = ""
    step_counts: tuple[int, ...] = ()
    step_seconds: tuple[float, ...] = ()


def run_trial(work: InputWork, settings: InputSettings, *, number: int, seconds: float) -> InputTrial:
    """Run one trial. Batches that workers prefetched while they started are not measured."""
    with many_workers_allowed():
        return _run(work, settings, number=number, seconds=seconds)


def _run(work: InputWork, settings: InputSettings, *, number: int, seconds: float) -> InputTrial:
    if work.prepare is not None:
        work.prepare()
    running = loader(
        work.dataset,
        settings,
        batch_size=work.batch_size,
        collate_fn=work.collate_fn,
        shuffle=work.shuffle,
        seed=work.seed,
        rank=0,
        world_size=1,
    )
    # Each trial has another order, so that it does not profit from what the last one left in memory.
    running.set_epoch(number)
    num_ahead = max(settings.num_workers * settings.prefetch_factor, 1)
    counts: list[int] = []
    times: list[float] = []
    waits: list[float] = []
    began = last = time.perf_counter()
    first_seconds, measured_from = 0.0, began
    num_steps = 0
    while not _is_enough(len(times), time.perf_counter() - measured_from, seconds):
        before = 0
        for _ in running:
            arrived = time.perf_counter()
            wait, num_steps = arrived - last, num_steps + 1
            if num_steps == 1:
                first_seconds = arrived - began
            if work.compute_seconds:
                time.sleep(work.compute_seconds)
            now = time.perf_counter()
            count, before = running.num_seen - before, running.num_seen
            if num_steps <= num_ahead and now - began < first_seconds + seconds / 2:
                measured_from = now
            else:
                counts.append(count)
                times.append(now - last)
                waits.append(wait)
            last = now
            if _is_enough(len(times), now - measured_from, seconds):
                break
    report = running.report()
    return InputTrial(
        number=number,
        settings=settings,
        rate=rate_interval(counts, times),
        wait_seconds=sum(waits) / len(waits),
        first_seconds=first_seconds,
        bottleneck=report.bottleneck,
        step_counts=tuple(counts),
        step_seconds=tuple(times),
    )


def _is_enough(num_steps: int, passed_seconds: float, seconds: float) -> bool:
    if num_steps >= _MIN_STEPS and passed_seconds >= seconds:
        return True
    return num_steps >= 2 and passed_seconds >= _MAX_STRETCH * seconds
