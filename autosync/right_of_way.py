"""Marks that the processes of a rank share, so that its reads and its messages can give way to each other.

The engine marks that messages travel, and a loader that the step waits for its batch. The rank's process makes the
marks; the workers of its loaders adopt them. A mark may be late by the time of a look: it decides who goes first, and
never what is right.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

LOOK_SECONDS = 2e-3
"""How often a read that gives way looks whether it may go on."""

_LONGEST_SECONDS = 10.0
"""The longest time for which a read gives way: the process that clears the marks may have ended."""

_MESSAGES_TRAVEL, _BATCH_IS_AWAITED, _MESSAGES_GIVE_WAY = range(3)


class RankMarks:
    """The marks of a rank. `shared` is memory that all of its processes see."""

    def __init__(self, shared: Any = None) -> None:
        if shared is None:
            import multiprocessing

            shared = multiprocessing.RawArray("b", 3)
        self.shared = shared

    @property
    def messages_travel(self) -> bool:
        """Whether messages of the engine travel."""
        return bool(self.shared[_MESSAGES_TRAVEL])

    @messages_travel.setter
    def messages_travel(self, value: bool) -> None:
        self.shared[_MESSAGES_TRAVEL] = value

    @property
    def messages_give_way(self) -> bool:
        """Whether the step waits for its batch, and reads go first."""
        return bool(self.shared[_MESSAGES_GIVE_WAY])

    @contextlib.contextmanager
    def awaiting_batch(self, *, reads_first: bool = False) -> Iterator[None]:
        """Within this context, the step waits for its batch. With `reads_first`, messages give way meanwhile."""
        self.shared[_BATCH_IS_AWAITED], self.shared[_MESSAGES_GIVE_WAY] = True, reads_first
        try:
            yield
        finally:
            self.shared[_BATCH_IS_AWAITED] = self.shared[_MESSAGES_GIVE_WAY] = False

    def give_way(self) -> None:
        """Return when no message travels, or when the step waits for its batch: a read then has the links."""
        end = time.monotonic() + _LONGEST_SECONDS
        while self.messages_travel and not self.shared[_BATCH_IS_AWAITED] and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)


_OF_PROCESS: dict[int, RankMarks] = {}
"""The marks of this process, by its number. A process that was forked finds those of its parent, which it ignores."""


def marks() -> RankMarks:
    """Return the marks of this process. A process that was forked has its own, unless it adopts others."""
    found = _OF_PROCESS.get(os.getpid())
    return _OF_PROCESS.setdefault(os.getpid(), RankMarks()) if found is None else found


def adopt(shared: Any) -> None:
    """Use the marks of the rank whose worker this process is."""
    _OF_PROCESS[os.getpid()] = RankMarks(shared)
