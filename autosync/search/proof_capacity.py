"""How many contestants have room in memory at once: in a proof all are prepared together."""

from __future__ import annotations

from pathlib import Path

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

COPIES = 3.0
"""Parameters, gradients and buffers or state: what a contestant takes on each rank, in sizes of the model."""

SHARE = 0.8
"""Of the memory that is free, so much may be taken."""

_MEMINFO = Path("/proc/meminfo")


def most_at_once(model: ModelSpec, cluster: ClusterSpec, *, meminfo: Path = _MEMINFO) -> int | None:
    """How many contestants fit at once where all ranks are on this machine; None where nobody can tell."""
    if not cluster.is_one_machine:
        return None
    free_bytes = _free_bytes(meminfo)
    if free_bytes is None:
        return None
    return int(SHARE * free_bytes / (COPIES * model.num_bytes * cluster.num_workers))


def _free_bytes(meminfo: Path) -> int | None:
    """What the kernel says that new programs can have (Linux)."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
