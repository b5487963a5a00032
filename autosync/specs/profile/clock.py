"""Clocks for profiling: the wall clock for CPUs, events of the device for CUDA.

A clock marks moments and later returns the time between them, because a GPU reaches a moment after the host.
`computed_clock` has a third clock, which computes its time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments in the order of work; used by one thread at a time."""

    def mark(self) -> Any:
        """Mark this moment. Cheap; never waits."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """The seconds between each mark and the next. May wait for the device."""


class HostClock:
    """The wall clock: on a CPU, work is done when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]


class CudaClock:
    """Events on the current stream: the time at which the GPU reaches them."""

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
