"""Processor time in the timeline: when work is done on the processors that ranks may share. Compiled."""

from __future__ import annotations

from autosync.simulators.jit import borrows_inner
from autosync.simulators.shared.arrays import Floats, Records
from autosync.simulators.timeline.scene import Heap


@borrows_inner
def work(  # noqa: PLR0917 - few arrays, see `_Ways`
    heap: Heap, ranks: Records, processor_free: Floats, rank: int, seconds: float, in_python: float
) -> float:
    """Return the time at which a processor has done work that is wanted now.

    A rank does one thing in Python at a time. That part of the work takes `in_python` seconds, then torch does the
    rest. With rank -1, no part of it is in Python.
    """
    start = heap.now[0]
    if rank >= 0:
        start = max(start, ranks[rank].python_free)
    if len(processor_free) > 0:
        # Of the processors that are free by then, take the one that became free last: the others stay free for work
        # that may begin earlier. If none is free by then, take the first to become free.
        chosen = 0
        for processor in range(1, len(processor_free)):
            free, before = processor_free[processor], processor_free[chosen]
            if free <= start:
                if before > start or before < free:
                    chosen = processor
            elif free < before:
                chosen = processor
        start = max(start, processor_free[chosen])
        processor_free[chosen] = start + seconds
    if rank >= 0:
        ranks[rank].python_free = start + in_python
    return float(start + seconds)
