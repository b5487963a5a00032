"""The load that other programs put on this machine's processors (Linux).

Other programs are all processes except this process, its descendants, and the kernel's threads, which do the work of
our network traffic. Time that the host takes from a virtual machine counts as used by other programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.15
"""The machine counts as busy if other programs use a larger share of processor time."""

_KERNEL_THREADS = 2
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShare:
    """The shares of processor time that other programs, and this process with its descendants, used in an interval.

    `num_ticks` is the length of the interval in ticks.
    """

    share: float
    own_share: float
    num_ticks: int


@dataclass(frozen=True, slots=True)
class _Ticks:
    others_ticks: int
    own_ticks: int
    all_ticks: int


class BackgroundLoad:
    """Measures the load of other programs since its previous measurement, or since its construction."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._last = self._look()

    def share(self) -> float:
        """Return the share of processor time that other programs used since the last call; 0 if no tick has passed."""
        return self.usage().share

    def usage(self) -> LoadShare:
        """Return the same share, our own, and the interval's ticks: the shares of a short interval mean little."""
        before, self._last = self._last, self._look()
        ticks = self._last.all_ticks - before.all_ticks
        # The time of an ended process is added to its parent's only when the parent waits for it.
        others, own = (
            min(1.0, max(0, used) / ticks) if ticks > 0 else 0.0
            for used in (self._last.others_ticks - before.others_ticks, self._last.own_ticks - before.own_ticks)
        )
        return LoadShare(share=others, own_share=own, num_ticks=ticks)

    def _look(self) -> _Ticks:
        words = self._proc.joinpath("stat").read_text().split("\n", 1)[0].split()
        all_ticks = sum(int(word) for word in words[1:9])
        stolen_ticks = int(words[8])
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The name in parentheses may hold any characters.
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
        own = sum(used for pid, used in ticks.items() if pid in ours)
        return _Ticks(others_ticks=others + stolen_ticks, own_ticks=own, all_ticks=all_ticks)


def _descendants(root: int, parents: dict[int, int]) -> set[int]:
    """Return a process, its children, their children and so on."""
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
