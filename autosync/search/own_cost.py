"""The cost of tuning itself: the time in which the ranks had no work, and this process's memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autosync.search.trial_runner import ComparingService
from autosync.trials.contestant import Contestant
from autosync.trials.service import StepSamples


class TimedService(ComparingService):
    """A trial service that measures in `busy_seconds` how long it was at work."""

    def __init__(self, service: ComparingService) -> None:
        self.busy_seconds = 0.0
        self._service = service

    def prepare(self, contestant: Contestant) -> int | None:
        with self._at_work():
            return self._service.prepare(contestant)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        with self._at_work():
            return self._service.run(name, num_steps, settle=settle)

    def release(self, name: str) -> None:
        with self._at_work():
            self._service.release(name)

    def difference(self, first: str, second: str) -> float:
        with self._at_work():
            return self._service.difference(first, second)

    def timeline(self, name: str) -> str:
        with self._at_work():
            return self._service.timeline(name)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.busy_seconds += time.monotonic() - began


def peak_memory_bytes() -> int:
    """Return the most memory that this process has used at once, without ranks and other child processes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB.
    return peak if sys.platform == "darwin" else 1024 * peak
