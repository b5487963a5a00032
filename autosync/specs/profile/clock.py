"""Clocks for profiling: the wall clock for CPUs, events of the device for CUDA.

A clock marks moments and returns the times between them later, because a GPU reaches a moment later than the host.
`computed_clock` has a third clock, which computes its times.
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
        """Mark this moment. This is cheap and never waits."""

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds between each mark and the next. May wait for the device."""


class HostClock:
    """The wall clock. It is right for a CPU, where work is done when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in itertools.pairwise(marks)]


def clock_of(device: torch.device) -> Clock:
    """Return the clock for a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class CudaClock:
    """A clock for a GPU: it records events on the current stream, which the GPU reaches in the order of its work."""

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
