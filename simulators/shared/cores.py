"""Predictions on several processor cores at the same time. They do not depend on the number of cores.

Compiled functions release Python's lock, so threads are enough.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

ValueT = TypeVar("ValueT")
FoundT = TypeVar("FoundT")

_num_cores: ContextVar[int] = ContextVar("num_cores", default=1)

AHEAD = 2
"""How many values a core may have waiting for it: scenes of large plans take megabytes."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Within this context, predictions use so many cores; one otherwise."""
    if count < 1:
        raise ValueError(f"{count} cores (1 or more)")
    token = _num_cores.set(count)
    try:
        yield
    finally:
        _num_cores.reset(token)


def on_each(function: Callable[[ValueT], FoundT], values: Iterable[ValueT]) -> Iterator[FoundT]:
    """Yield the results of a function, in the order of the values, which are made while others are worked on."""
    count = _num_cores.get()
    if count == 1:
        yield from map(function, values)
        return
    with ThreadPoolExecutor(count) as pool:
        begun: deque[Future[FoundT]] = deque()
        for value in values:
            begun.append(pool.submit(function, value))
            if len(begun) > AHEAD * count:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
