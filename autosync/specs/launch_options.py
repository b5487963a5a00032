"""The sections of a cluster file for one launcher: `ray` and `kubernetes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_STRICT: Any = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The Ray cluster, and the resources of each bundle of the placement group.

    Without `resources`, a worker's bundle has a CPU for each device, and also a GPU if the backend is nccl. With
    `pinned`, each node is placed on the host that the file names; otherwise Ray chooses the machines by `strategy`.
    """

    __pydantic_config__ = _STRICT

    address: str = "auto"
    strategy: Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"] = "STRICT_SPREAD"
    pinned: bool = True
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The pods that stand for nodes.

    `container` and `pod` are further fields of the container and of the pod in Kubernetes. With `pinned`, pods run on
    the hosts that the file names; otherwise on any machines, but each pod on a separate machine.
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
