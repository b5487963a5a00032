"""What a rank observes of its input: how long steps wait, what workers do, and what hosts deliver."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from autosync.inputs.host_rates import Read
from autosync.inputs.measured_batches import BatchTimes
from autosync.inputs.meter import ReadTotals

_MAX_STEPS = 10_000
"""The last steps, whose waits are kept one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWork:
    """What one worker did. Worker -1 is the process of the rank itself."""

    worker: int
    num_batches: int = 0
    num_examples: int = 0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    collate_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.read_seconds + self.decode_seconds + self.collate_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReport:
    """The input of one rank since its loader was made or its report was reset.

    `first_wait_seconds` adds up the waits for the first batch of each pass, which include the start of workers; they
    are not among the others. `hosts` has what was read through autosync, by the host that served it.
    """

    num_steps: int
    num_examples: int
    first_wait_seconds: float
    wait_seconds: float
    median_wait_seconds: float
    slow_wait_seconds: float
    """The wait that 95 % of the steps do not exceed."""
    workers: tuple[WorkerWork, ...]
    hosts: Mapping[str, ReadTotals]

    @property
    def bottleneck(self) -> str:
        """The part on which workers spend most time: `read`, `decode` or `collate`."""
        totals = {
            "read": sum(one.read_seconds for one in self.workers),
            "decode": sum(one.decode_seconds for one in self.workers),
            "collate": sum(one.collate_seconds for one in self.workers),
        }
        return max(totals, key=lambda name: totals[name])


@dataclass(slots=True)
class InputWatch:
    """Gathers the times of a loader's batches."""

    first_wait_seconds: float = 0.0
    num_steps: int = 0
    wait_seconds: float = 0.0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    workers: dict[int, WorkerWork] = field(default_factory=dict)
    hosts: dict[str, ReadTotals] = field(default_factory=dict)
    reads: deque[Read] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    fetches: deque[Read] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    """The bytes that a batch took, and the seconds in which its worker waited for them."""
    num_read_bytes: int = 0
    away_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS))
    """The time between getting a batch and asking for the next one."""

    def add(self, wait_seconds: float, times: BatchTimes, *, is_first: bool, away_seconds: float = 0.0) -> None:
        """Add a step that waited so long for a batch, after the last batch was used for `away_seconds`."""
        self.num_steps += 1
        if is_first:
            self.first_wait_seconds += wait_seconds
        else:
            self.wait_seconds += wait_seconds
            self.waits.append(wait_seconds)
            self.away_seconds.append(away_seconds)
        old = self.workers.get(times.worker, WorkerWork(worker=times.worker))
        self.workers[times.worker] = WorkerWork(
            worker=times.worker,
            num_batches=old.num_batches + 1,
            num_examples=old.num_examples + times.num_examples,
            read_seconds=old.read_seconds + times.read_seconds,
            decode_seconds=old.decode_seconds + times.decode_seconds,
            collate_seconds=old.collate_seconds + times.collate_seconds,
            cpu_seconds=old.cpu_seconds + times.cpu_seconds,
        )
        for host, totals in times.hosts.items():
            self.hosts[host] = self.hosts.get(host, ReadTotals()) + totals
        together = sum(times.hosts.values(), ReadTotals())
        self.reads.append((together.num_bytes, together.request_seconds))
        self.fetches.append((together.num_bytes, times.read_seconds))
        self.num_read_bytes += together.num_bytes

    def examples_per_second(self, num_workers: int) -> float:
        """Return how many examples a second so many workers can give if steps never let them wait."""
        seconds = sum(one.seconds for one in self.workers.values())
        count = sum(one.num_examples for one in self.workers.values())
        return count * max(num_workers, 1) / max(seconds, 1e-9)

    @property
    def usual_away_seconds(self) -> float:
        """The median time between getting a batch and asking for the next one."""
        return float(np.median(np.asarray(self.away_seconds))) if self.away_seconds else 0.0

    def report(self) -> InputReport:
        """Return what was gathered."""
        waits = np.asarray(self.waits) if self.waits else np.zeros(1)
        return InputReport(
            num_steps=self.num_steps,
            num_examples=sum(one.num_examples for one in self.workers.values()),
            first_wait_seconds=self.first_wait_seconds,
            wait_seconds=self.wait_seconds,
            median_wait_seconds=float(np.median(waits)),
            slow_wait_seconds=float(np.quantile(waits, 0.95)),
            workers=tuple(self.workers[number] for number in sorted(self.workers)),
            hosts=dict(self.hosts),
        )
