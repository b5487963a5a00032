"""The device on which a rank trains its contestants."""

from __future__ import annotations

import torch

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec


def rank_device(cluster: ClusterSpec, rank: int) -> torch.device:
    """Return a GPU of its own for each rank of a node if the cluster's backend is NCCL, and the CPU otherwise."""
    if cluster.device_type == "cpu":
        return torch.device("cpu")
    place = cluster.ranks[rank]
    node, devices = cluster.nodes[place.node].name, cluster.nodes[place.node].devices
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        raise OperationError(
            f"{node}: the cluster's backend is nccl, which needs a GPU for each rank, and torch {torch.__version__} "
            "finds none (install a build of torch for CUDA there, or write backend: gloo to train on CPUs)"
        )
    # Slurm and Ray may show each rank its own GPU alone.
    if num_gpus == 1:
        return torch.device("cuda", 0)
    if place.local >= num_gpus:
        raise OperationError(
            f"{node}: the cluster file has {devices} devices, and torch finds {num_gpus} GPUs (with nccl, each rank "
            "needs its own)"
        )
    return torch.device("cuda", place.local)
