"""The device on which a rank trains its contestants."""

from __future__ import annotations

import os

import torch

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec


def rank_device(cluster: ClusterSpec, rank: int) -> torch.device:
    """Return a GPU of its own for each rank of a machine if the cluster's backend is NCCL, and the CPU otherwise.

    All ranks of a machine see the same GPUs, because they have the environment of its agent.
    """
    if cluster.device_type == "cpu":
        return torch.device("cpu")
    place = cluster.ranks[rank]
    node = cluster.nodes[place.node]
    local, num_devices = (rank, cluster.num_workers) if cluster.is_one_machine else (place.local, node.devices)
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        raise OperationError(
            f"{node.name}: the cluster's backend is nccl, which needs a GPU for each rank, and torch "
            f"{torch.__version__} finds none ({_why_none()})"
        )
    if num_gpus < num_devices:
        raise OperationError(
            f"{node.name}: the cluster file has {num_devices} devices there, and torch finds {num_gpus} "
            f"GPU{'' if num_gpus == 1 else 's'} (with nccl, each rank needs its own; {_shown()})"
        )
    return torch.device("cuda", local)


def _why_none() -> str:
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "install a build of torch for CUDA there, or write backend: gloo to train on CPUs"
    return (
        f"it is built for GPUs, but the launcher shows this rank none: {_shown()}; Slurm gives them by "
        "AUTOSYNC_SLURM=--gres=gpu:N, Ray by GPU in its resources, Kubernetes by nvidia.com/gpu"
    )


def _shown() -> str:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"CUDA_VISIBLE_DEVICES is {'not set' if given is None else repr(given)}"
