"""Measures the machine's load during a profile: the share of other programs, and how long the profile's threads waited.

Both come from /proc (Linux). On other systems, and in a sandbox that hides /proc, they are unknown and nothing is
flagged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from autosync.specs.background_load import BUSY_SHARE, BackgroundLoad

MOST_WAITED = 0.1
"""The machine counts as busy if runnable threads wait for a larger share of their time."""
FEW_OTHERS = 0.02
"""If other programs use a smaller share than this, threads that waited did so for one another."""
LEAST_TICKS = 20
"""The fewest ticks of all processors for which the share of other programs means anything."""
LEAST_SECONDS = 0.02
"""The least runnable time for which the share of waiting means anything: one time slice is 4 ms."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLoad:
    """The share of processor time of other programs, and the share of time that our threads waited; None if unknown."""

    other_cpu_share: float | None
    waited_share: float | None

    @property
    def is_busy(self) -> bool:
        """Whether other programs slowed the profile down, as far as known."""
        others, waited = self.other_cpu_share, self.waited_share
        if others is not None and others > BUSY_SHARE:
            return True
        return waited is not None and waited > MOST_WAITED and (others is None or others > FEW_OTHERS)


UNKNOWN = MachineLoad(other_cpu_share=None, waited_share=None)


class LoadWatch:
    """Measures the load of the machine, beginning with its construction."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._others = _others(proc)
        self._waited = _waited_seconds(proc)
        self._used = time.process_time()

    def load(self) -> MachineLoad:
        """Return the load since construction."""
        return MachineLoad(other_cpu_share=self._other_cpu_share(), waited_share=self._waited_share())

    def _other_cpu_share(self) -> float | None:
        if self._others is None:
            return None
        usage = self._others.usage()
        return round(usage.share, 4) if usage.num_ticks >= LEAST_TICKS else None

    def _waited_share(self) -> float | None:
        now = _waited_seconds(self._proc)
        if self._waited is None or now is None:
            return None
        # The figures of ended threads are lost; those of new threads began at zero.
        waited = sum(max(0.0, seconds - self._waited.get(thread, 0.0)) for thread, seconds in now.items())
        used = time.process_time() - self._used
        return round(waited / (waited + used), 4) if waited + used >= LEAST_SECONDS else None


def _others(proc: Path) -> BackgroundLoad | None:
    try:
        return BackgroundLoad(proc)
    except (OSError, ValueError, IndexError):
        return None


def _waited_seconds(proc: Path) -> dict[str, float] | None:
    """Return the time that each thread of this process has waited for a processor so far."""
    try:
        threads = [entry.name for entry in (proc / "self" / "task").iterdir()]
    except OSError:
        return None
    found = {}
    for thread in threads:
        try:
            words = (proc / "self" / "task" / thread / "schedstat").read_text(encoding="utf-8").split()
            found[thread] = int(words[1]) / 1e9
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile, or the kernel keeps no such figures
    return found or None
