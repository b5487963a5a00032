"""The load that other programs put on this machine's processors (Linux).

Other programs are all processes except this process, its descendants, and the kernel's threads, which do the work of
our network traffic. Time that the host takes from a virtual machine counts as used by other programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


class _Process(NamedTuple):
    """The ticks that a process has used, and those of ended children that it has waited for."""

    parent: int = 0
    ticks: int = 0
    reaped_ticks: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """All ticks of the machine, those that its host took, its processes without the kernel's, and which are ours.

    A process is known by its number and by when it began, because numbers are used again.
    """

    all_ticks: int
    stolen_ticks: int
    processes: dict[tuple[int, int], _Process]
    ours: set[tuple[int, int]]


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
        before, now = self._last, self._look()
        self._last = now
        others = _used(before, now, ours=False) + now.stolen_ticks - before.stolen_ticks
        own = _used(before, now, ours=True)
        ticks = now.all_ticks - before.all_ticks
        share, own_share = (min(1.0, max(0, used) / ticks) if ticks > 0 else 0.0 for used in (others, own))
        return LoadShare(share=share, own_share=own_share, num_ticks=ticks)

    def _look(self) -> _Look:
        words = self._proc.joinpath("stat").read_text().split("\n", 1)[0].split()
        processes: dict[tuple[int, int], _Process] = {}
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The name in parentheses may hold any characters.
                fields = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            pid, parent = int(entry.name), int(fields[1])
            if _KERNEL_THREADS not in (pid, parent):
                ticks, reaped = (sum(map(int, some)) for some in (fields[11:13], fields[13:15]))
                processes[pid, int(fields[19])] = _Process(parent, ticks, reaped)
        ours = _descendants(os.getpid(), {pid: process.parent for (pid, _), process in processes.items()})
        return _Look(
            all_ticks=sum(int(word) for word in words[1:9]),
            stolen_ticks=int(words[8]),
            processes=processes,
            ours={key for key in processes if key[0] in ours},
        )


def _used(before: _Look, now: _Look, *, ours: bool) -> int:
    """Return the ticks that our processes, or all others, used between two looks.

    What an ended process had used before is taken off what its parent got for it. A parent that did not wait got
    nothing, and then nothing is taken off what living processes used.
    """
    living = reaped = 0
    for key, process in now.processes.items():
        if (key in now.ours) == ours:
            earlier = before.processes.get(key, _Process())
            living += process.ticks - earlier.ticks
            reaped += process.reaped_ticks - earlier.reaped_ticks
    for key, process in before.processes.items():
        if key not in now.processes and (key in before.ours) == ours:
            reaped -= process.ticks + process.reaped_ticks
    return living + max(0, reaped)


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
