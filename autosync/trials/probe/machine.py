"""Reads the system's facts about network interfaces: the bytes through each, and its speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autosync.trials.probe.request import Interface

# A higher reported speed is not real: virtual interfaces report such speeds.
_MAX_MBITS = 1_000_000
_MBIT = 125_000.0
_SYSTEM = Path("/sys/class/net")


def interface_bytes() -> dict[str, int]:
    """Return the bytes that each interface visible to this process has received and sent in total so far."""
    totals = {}
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        totals[name.strip()] = int(fields[0]) + int(fields[8])
    return totals


def interfaces_since(before: Mapping[str, int]) -> tuple[Interface, ...]:
    """Return the bytes that each interface has carried since `before`, the busiest first."""
    now = interface_bytes()
    found = [
        Interface(name=name, num_bytes=total - before.get(name, 0), bytes_per_second=_speed(name, set(now)))
        for name, total in now.items()
    ]
    return tuple(sorted(found, key=lambda interface: -interface.num_bytes))


def _speed(name: str, visible: set[str], folder: Path = _SYSTEM) -> float | None:
    """Return the speed that the driver of a device reports, or of bonded devices; None if it is unknown.

    It is unknown if /sys shows other interfaces than this process has. Virtual interfaces, such as bridges between
    containers, report made-up speeds.
    """
    try:
        if {path.name for path in folder.iterdir()} != visible:
            return None
        if not (folder / name / "device").exists() and not (folder / name / "bonding").is_dir():
            return None
        mbits = int((folder / name / "speed").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return mbits * _MBIT if 0 < mbits <= _MAX_MBITS else None
