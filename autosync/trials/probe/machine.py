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
    """Return the bytes that each interface has carried since `before`, the busiest first.

    Below a VLAN or a bridge, a device carries the same traffic once more. Such devices come last.
    """
    now = interface_bytes()
    carried = {name: total - before.get(name, 0) for name, total in now.items()}
    found = [
        Interface(name=name, num_bytes=num_bytes, bytes_per_second=_speed(name, set(now)))
        for name, num_bytes in carried.items()
    ]
    return tuple(sorted(found, key=lambda one: (_carries_for_another(one.name, carried), -one.num_bytes)))


def _carries_for_another(name: str, carried: Mapping[str, int], folder: Path = _SYSTEM) -> bool:
    """Whether most of what a device has carried belongs to an interface above it."""
    above = [path.name.removeprefix("upper_") for path in (folder / name).glob("upper_*")]
    return any(2 * carried.get(one, 0) > carried[name] for one in above)


def _speed(name: str, visible: set[str], folder: Path = _SYSTEM) -> float | None:
    """Return the speed that the driver of a device reports, or of bonded devices; None if it is unknown.

    It is unknown if /sys shows other interfaces than this process has. Virtual interfaces, such as bridges between
    containers, report made-up speeds.
    """
    try:
        # The bonding module adds a file, bonding_masters, which is no interface.
        if {path.name for path in folder.iterdir() if path.is_dir()} != visible:
            return None
        if not (folder / name / "device").exists() and not (folder / name / "bonding").is_dir():
            return None
        mbits = int((folder / name / "speed").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return mbits * _MBIT if 0 < mbits <= _MAX_MBITS else None
