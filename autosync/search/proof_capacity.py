"""The number of contestants that fit into memory at once. A proof prepares all of them together."""

from __future__ import annotations

from pathlib import Path

from autosync.specs.cluster import ClusterSpec
from autosync.specs.free_memory import MEMINFO, free_bytes
from autosync.specs.model import ModelSpec

COPIES = 3.0
"""The memory of a contestant on each rank, in sizes of the model: parameters, gradients, and buffers or state."""

SHARE = 0.8
"""The share of the free memory that may be used."""


def most_at_once(model: ModelSpec, cluster: ClusterSpec, *, meminfo: Path = MEMINFO) -> int | None:
    """Return how many contestants fit at once if all ranks are on this machine; None if it is unknown."""
    if not cluster.is_one_machine:
        return None
    available = free_bytes(meminfo)
    if available is None:
        return None
    return int(SHARE * available / (COPIES * model.num_bytes * cluster.num_workers))
