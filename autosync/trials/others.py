"""What other programs use of this machine's processors, from the processor time of all processes (Linux).

Others are all processes but this one, those that it started, and the kernel's threads, which do our network's work.
What the host of a virtual machine takes away counts as theirs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.15
"""Where others use more, the machine counts as busy."""

_KERNEL_THREADS = 2
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class _Look:
    others_ticks: int
    all_ticks: int


class Others:
    """Tells what others used since it was last asked."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._last = self._look()

    def share(self) -> float:
        """The share of all processor time that others used since this was last asked; 0 where no tick has passed."""
        before, self._last = self._last, self._look()
        ticks = self._last.all_ticks - before.all_ticks
        # What an ended process used is its parent's once that has seen it; in between it may be nobody's.
        used = max(0, self._last.others_ticks - before.others_ticks)
        return min(1.0, used / ticks) if ticks > 0 else 0.0

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
