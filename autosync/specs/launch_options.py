"""What a cluster file says to one launcher alone: the sections `ray` and `kubernetes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_STRICT: Any = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Which Ray cluster, and what each node's bundle of the placement group reserves.

    Without `resources` a worker's bundle has a CPU for each device, and a GPU too where the backend is nccl. `pinned`
    nodes are those that the file's hosts name; others are wherever Ray finds room, each on a node of its own.
    """

    __pydantic_config__ = _STRICT

    address: str = "auto"
    strategy: Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"] = "STRICT_SPREAD"
    pinned: bool = True
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The pods that stand for nodes.

    `container` and `pod` are more fields of the container and of the pod, as Kubernetes has them. `pinned` pods run on
    the machines that the file's hosts name; others wherever there is room, each on a machine of its own.
    """

    __pydantic_config__ = _STRICT

    image: str
    namespace: str = "default"
    context: str | None = None
    kind: Literal["job", "trainjob"] = "job"
    runtime: str = "torch-distributed"
    pinned: bool = False
    container: Mapping[str, Any] = field(default_factory=dict, hash=False)
    pod: Mapping[str, Any] = field(default_factory=dict, hash=False)
