"""Reads a rank's meters around measured steps: processor time of its machine, bytes on its link, peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

from autosync.specs.cluster import ClusterSpec

_PROC = Path("/proc")

_QUIET_SECONDS = 0.03
_QUIET_BYTES = 32 * 1024
"""An interface is quiet if so many bytes or fewer arrive in this time. Heartbeats and the rank's own control need less.
"""
_MOST_QUIET_WAIT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Ticks of all processors since the machine started, busy and in total; bytes over the interface, or None."""

    busy_ticks: int
    ticks: int
    sent_bytes: int | None
    received_bytes: int | None


def counted_interface(cluster: ClusterSpec) -> str | None:
    """Return the interface whose bytes are those of training: gloo's. NCCL may send by others, or by none."""
    return os.environ.get("GLOO_SOCKET_IFNAME") if cluster.backend == "gloo" else None


def read_meters(interface: str | None) -> Reading:
    """Read the meters now. Bytes are None for loopback or an unknown interface, which tell nothing about a link."""
    ticks = [int(word) for word in _PROC.joinpath("stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    sent, received = _bytes_of(interface) if interface and interface != "lo" else (None, None)
    return Reading(busy_ticks=sum(ticks) - idle, ticks=sum(ticks), sent_bytes=sent, received_bytes=received)


def cpu_share(before: Reading, after: Reading) -> float:
    """Return the used share of the machine's processor time between two readings; 0 if no tick has passed."""
    ticks = after.ticks - before.ticks
    return min(1.0, max(0.0, (after.busy_ticks - before.busy_ticks) / ticks)) if ticks > 0 else 0.0


def wait_until_quiet(interface: str | None) -> None:
    """Wait until hardly any bytes arrive over the interface, as long as answers to earlier requests may take.

    Return at once for loopback or an unknown interface.
    """
    give_up, arrived = time.monotonic() + _MOST_QUIET_WAIT, read_meters(interface).received_bytes
    while arrived is not None and time.monotonic() < give_up:
        time.sleep(_QUIET_SECONDS)
        before, arrived = arrived, read_meters(interface).received_bytes
        if arrived is not None and arrived - before < _QUIET_BYTES:
            return


def _bytes_of(interface: str) -> tuple[int | None, int | None]:
    for line in _PROC.joinpath("self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == interface:
            words = figures.split()
            return int(words[8]), int(words[0])
    return None, None


def peak_memory_bytes() -> int | None:
    """Return this program's peak memory since its start or the last reset, or None if the system does not tell.

    It counts this program alone; the figure of getrusage would include the process that started it.
    """
    for line in _PROC.joinpath("self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def reset_peak_memory() -> None:
    """Reset the peak memory, if the system allows it."""
    with contextlib.suppress(OSError):
        _PROC.joinpath("self/clear_refs").write_text("5")


def give_back_memory() -> None:
    """Make the C library return freed memory to the system; else it would count for the next contestant."""
    # Only glibc has this function, and only glibc keeps that much.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
