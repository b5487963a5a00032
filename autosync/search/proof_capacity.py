"""The number of contestants that fit into memory at once. A proof prepares all of them together."""

from __future__ import annotations

from pathlib import Path

from autosync.specs.cluster import ClusterSpec
from autosync.specs.free_memory import MEMINFO, free_bytes
from autosync.specs.model import ModelSpec

COPIES = 3.0
"""The memory of a contestant on each rank, in sizes of the model: parameters, gradients, and the copies that are sent.
The optimizer's state comes on top."""

SHARE = 0.8
"""The share of the free memory that may be used."""


def most_at_once(
    model: ModelSpec, cluster: ClusterSpec, *, state_slots: int = 0, meminfo: Path = MEMINFO
) -> int | None:
    """Return how many contestants fit at once; None if it is unknown.

    `state_slots` is the number of state tensors that the optimizer keeps for each parameter.
    What this machine has free is known, if all ranks are here. Of other machines the cluster file may state the memory.
    """
    of_rank = (COPIES + state_slots) * model.num_bytes
    if cluster.is_one_machine:
        available = free_bytes(meminfo)
        return None if available is None else int(SHARE * available / (of_rank * cluster.num_workers))
    if cluster.backend == "nccl":
        # Contestants are in the memory of devices.
        return None
    rooms = [
        int(SHARE * node.memory_bytes / (of_rank * node.devices))
        for node in cluster.nodes
        if node.memory_bytes is not None and node.devices
    ]
    return min(rooms, default=None)
