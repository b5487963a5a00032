"""The cluster spec: nodes, ranks, links, and which nodes are alike.

A node has one network interface, a rank is one process. Worker ranks come first, node by node in the order of the file;
then each server-only node has one rank. Rates are bytes per second in each direction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autosync import jsonio

Role = Literal["worker", "server"]
BackendName = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with one network interface. A worker has one rank per device; a server-only node has one rank and no device."""

    name: str
    host: str
    role: Role = "worker"
    devices: int = 1
    bandwidth_out: float
    bandwidth_in: float
    intra_bandwidth: float | None = None
    rack: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Nodes behind one uplink, with the uplink's rate in each direction."""

    name: str
    uplink_out: float
    uplink_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process: `index` in the whole cluster, `local` on its node (the node by its position in the spec)."""

    index: int
    node: int
    local: int
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster. `alike` lists classes of nodes that may be exchanged for one another; a node in no class is like itself alone."""

    name: str
    nodes: tuple[Node, ...]
    racks: tuple[Rack, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    launcher: str = "local"
    backend: BackendName = "gloo"

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks: workers first, then servers."""
        return _ranks(self)

    @property
    def num_workers(self) -> int:
        return sum(node.devices for node in self.nodes if node.role == "worker")

    def node_index(self, name: str) -> int:
        """The position of the node of that name; KeyError where there is none."""
        return _node_indexes(self)[name]

    def leader(self, node: int) -> int:
        """The first rank of a node: where it serves and where its ranks meet."""
        return next(rank.index for rank in self.ranks if rank.node == node)

    def worker_groups(self) -> tuple[tuple[int, ...], ...]:
        """The worker ranks, node by node."""
        return _worker_groups(self)

    def fingerprint(self) -> str:
        """A hash of all that plans depend on: names, ranks, racks, backend and symmetry; no rates, hosts or launcher."""
        nodes = [(n.name, n.role, n.devices, n.rack) for n in self.nodes]
        return jsonio.content_hash([nodes, [list(names) for names in self.alike], self.backend])


def _all_ranks(cluster: ClusterSpec) -> Iterator[Rank]:
    index = 0
    for role in ("worker", "server"):
        for position, node in enumerate(cluster.nodes):
            if node.role == role:
                for local in range(node.devices if role == "worker" else 1):
                    yield Rank(index=index, node=position, local=local, role=node.role)
                    index += 1


@functools.lru_cache(maxsize=256)
def _ranks(cluster: ClusterSpec) -> tuple[Rank, ...]:
    return tuple(_all_ranks(cluster))


@functools.lru_cache(maxsize=256)
def _node_indexes(cluster: ClusterSpec) -> Mapping[str, int]:
    return {node.name: position for position, node in enumerate(cluster.nodes)}


@functools.lru_cache(maxsize=256)
def _worker_groups(cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for rank in cluster.ranks:
        if rank.role == "worker":
            groups.setdefault(rank.node, []).append(rank.index)
    return tuple(tuple(group) for group in groups.values())
