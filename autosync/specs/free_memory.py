"""The memory of this machine that new programs may use."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def free_bytes(meminfo: Path = MEMINFO) -> int | None:
    """Return the bytes that the kernel says are available to new programs; None on systems other than Linux."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
