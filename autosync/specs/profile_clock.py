"""Clocks for profiling: the host's for the CPU, the device's own events for CUDA.

A clock marks moments and afterwards tells the time between them, for a GPU's moments are known only once it has got
there. `autosync.specs.profile_computed` has a third clock, which computes its time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments in the order in which work is handed out; used by one thread at a time."""

    def mark(self) -> Any:
        """This moment. Cheap; waits for nothing."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """The seconds between each mark and the next, one fewer than there are marks. May wait for the device."""


class HostClock:
    """The wall clock: on a CPU, work is done when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]


class CudaClock:
    """Events on the current stream: the time at which the GPU, not the host, gets there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        if marks:
            marks[-1].synchronize()
        pairs = itertools.pairwise(marks)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]
