"""What a rank reads off its machine around measured steps: processor time, bytes on its link, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Ticks of all processors since the machine is up, busy and altogether; bytes over the interface, if it is one."""

    busy_ticks: int
    ticks: int
    sent_bytes: int | None
    received_bytes: int | None


def read_meters(interface: str | None) -> Reading:
    """The meters now. Over loopback, or an interface that is not known, bytes tell nothing of a rank's link."""
    ticks = [int(word) for word in _PROC.joinpath("stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    sent, received = _bytes_of(interface) if interface and interface != "lo" else (None, None)
    return Reading(busy_ticks=sum(ticks) - idle, ticks=sum(ticks), sent_bytes=sent, received_bytes=received)


def cpu_share(before: Reading, after: Reading) -> float:
    """The share of the machine's processor time that anything used between two readings; 0 where no tick has passed."""
    ticks = after.ticks - before.ticks
    return min(1.0, max(0.0, (after.busy_ticks - before.busy_ticks) / ticks)) if ticks > 0 else 0.0


def _bytes_of(interface: str) -> tuple[int | None, int | None]:
    for line in _PROC.joinpath("self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == interface:
            words = figures.split()
            return int(words[8]), int(words[0])
    return None, None


def peak_memory_bytes() -> int | None:
    """The most memory that this program had since it began or its peak was reset. None where the system tells none.

    Of this program alone: what getrusage tells includes the process that started it.
    """
    for line in _PROC.joinpath("self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def reset_peak_memory() -> None:
    """Let the peak begin anew, where the system allows it."""
    with contextlib.suppress(OSError):
        _PROC.joinpath("self/clear_refs").write_text("5")


def give_back_memory() -> None:
    """Let the C library give back what it keeps of freed memory, or the next contestant has its predecessors' share."""
    # Only glibc has it, and only glibc keeps that much.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
