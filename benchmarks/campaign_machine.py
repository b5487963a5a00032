"""How busy the machine is with other things than the campaign: from the processor time of all processes (Linux).

Others are all processes but this one, those that it started, and the kernel's threads, which do our network's work.
What the host of a virtual machine takes away counts as theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autosync.errors import OperationError

_KERNEL_THREADS = 2
LOOK_SECONDS = 0.5

Share = Callable[[], float]
"""The share of the processor time that others used since the last time that it was asked for."""


@dataclass(frozen=True, slots=True)
class _Look:
    others_ticks: int
    all_ticks: int


class Machine:
    """Tells what others use, and waits until it is little."""

    def __init__(
        self,
        *,
        max_other_cpu: float,
        patience_seconds: float,
        proc: Path = Path("/proc"),
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_other_cpu = max_other_cpu
        self._patience_seconds = patience_seconds
        self._proc = proc
        self._sleep = sleep
        self._clock = clock
        self._last = self._look()

    def others_share(self) -> float:
        """The share of all processor time that others used since this was last asked; 0 where no tick has passed."""
        before, self._last = self._last, self._look()
        ticks = self._last.all_ticks - before.all_ticks
        # What an ended process used is its parent's once that has seen it; in between it may be nobody's.
        used = max(0, self._last.others_ticks - before.others_ticks)
        return min(1.0, used / ticks) if ticks > 0 else 0.0

    def await_quiet(self, tell: Callable[[str], None]) -> None:
        """Return when others use little; OperationError where they do not stop for too long."""
        deadline = self._clock() + self._patience_seconds
        told = False
        while True:
            self.others_share()
            self._sleep(LOOK_SECONDS)
            share = self.others_share()
            if share <= self.max_other_cpu:
                return
            busy = f"other programs use {share:.0%} of the processors (at most {self.max_other_cpu:.0%} may be)"
            if self._clock() >= deadline:
                raise OperationError(f"{busy}; waited {self._patience_seconds:.0f} s")
            if not told:
                tell(f"waiting: {busy}")
                told = True
            self._sleep(min(5.0, max(0.0, deadline - self._clock())))

    def _look(self) -> _Look:
        words = self._proc.joinpath("stat").read_text().split("\n", 1)[0].split()
        all_ticks = sum(int(word) for word in words[1:9])
        stolen_ticks = int(words[8])
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The name, in parentheses, may hold anything.
                fields = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            ticks[pid] = sum(int(field) for field in fields[11:15])
        ours = _descendants(os.getpid(), parents)
        others = sum(
            used
            for pid, used in ticks.items()
            if pid not in ours and pid != _KERNEL_THREADS and parents[pid] != _KERNEL_THREADS
        )
        return _Look(others_ticks=others + stolen_ticks, all_ticks=all_ticks)


def _descendants(root: int, parents: dict[int, int]) -> set[int]:
    """A process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found
