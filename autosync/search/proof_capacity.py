"""The number of contestants that fit into memory at once. A proof prepares all of them together."""

from __future__ import annotations

from pathlib import Path

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

COPIES = 3.0
"""The memory of a contestant on each rank, in sizes of the model: parameters, gradients, and buffers or state."""

SHARE = 0.8
"""The share of the free memory that may be used."""

_MEMINFO = Path("/proc/meminfo")


def most_at_once(model: ModelSpec, cluster: ClusterSpec, *, meminfo: Path = _MEMINFO) -> int | None:
    """Return how many contestants fit at once if all ranks are on this machine; None if it is unknown."""
    if not cluster.is_one_machine:
        return None
    free_bytes = _free_bytes(meminfo)
    if free_bytes is None:
        return None
    return int(SHARE * free_bytes / (COPIES * model.num_bytes * cluster.num_workers))


def _free_bytes(meminfo: Path) -> int | None:
    """Return the bytes that the kernel says are available to new programs; None on systems other than Linux."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
