"""The cluster spec: nodes, ranks, links, and classes of equal nodes.

A node is one machine; a rank is one process. Worker ranks come first, node by node in the order of the file;
after them comes one rank for each server-only node. Rates are bytes per second in each direction. A spec that breaks a
rule (`cluster_rules`) cannot be built. `cluster_file` reads and writes files. `calibration` holds measurements, if the
cluster was probed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autosync import jsonio
from autosync.errors import InputError
from autosync.specs import cluster_rules
from autosync.specs.calibration import Calibration
from autosync.specs.cost_profiles import CostChoice, choice_problems
from autosync.specs.launch_options import KubernetesOptions, RayOptions
from autosync.specs.launchers import launcher_traits, shares_loopback
from autosync.units import format_rate, format_size

Role = Literal["worker", "server"]
BackendName = Literal["gloo", "nccl"]

_FASTEST_PCIE = 32e9
"""Bytes a second of 16 lanes of PCIe 4.0. Links within a node that are faster are taken for NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine, with the rate of its network interfaces together.

    A worker has one rank per device; a server-only node has one rank and no device (`devices` is 0).
    `intra_bandwidth` is the rate between two ranks of the node, or None if it is unknown. `intra_total` is the rate of
    what they all share inside the node, such as a PCIe switch, also on the way to the network; None if they share
    nothing. `nics` is the number of network interfaces. `compute` is the speed of its
    devices, compared with the device on which models are profiled: at 0.5, compute takes twice as long. `storage` is
    the rate at which storage serves all ranks of the node together, or None if only its interface limits it.
    """

    name: str
    host: str
    role: Role = "worker"
    devices: int = 1
    bandwidth_out: float
    bandwidth_in: float
    intra_bandwidth: float | None = None
    rack: str | None = None
    memory_bytes: int | None = None
    compute: float = 1.0
    intra_total: float | None = None
    nics: int = 1
    storage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """Nodes behind one uplink, with the uplink's rate in each direction.

    `rack` is the name of the rack that it stands in, such as a pod; None if its uplink goes to the spine.
    """

    name: str
    uplink_out: float
    uplink_in: float
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process: `index` is its number in the cluster, `node` the position of its node, `local` its number there."""

    index: int
    node: int
    local: int
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A cluster.

    `alike` lists classes of nodes that may be exchanged for one another. `python` is the path of Python on the nodes,
    if it differs from the path here. `ray` and `kubernetes` are options of those launchers. `costs` says what
    messages and work cost, None for what is usual for the backend.
    """

    name: str
    nodes: tuple[Node, ...]
    racks: tuple[Rack, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    launcher: str = "local"
    backend: BackendName = "gloo"
    python: str | None = None
    ray: RayOptions | None = None
    kubernetes: KubernetesOptions | None = None
    calibration: Calibration | None = None
    costs: CostChoice | None = None

    def __post_init__(self) -> None:
        problems = cluster_rules.mistakes(
            name=self.name, nodes=self.nodes, racks=self.racks, alike=self.alike, launcher=self.launcher
        ) or cluster_rules.disagreements(self.nodes, self.alike)
        if self.calibration is not None:
            problems += cluster_rules.strangers(self.calibration, self.nodes, self.racks)
        if self.costs is not None:
            problems += choice_problems(self.costs)
        if problems:
            raise InputError(problems)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks: workers first, then servers."""
        return _ranks(self)

    @property
    def num_workers(self) -> int:
        return sum(node.devices for node in self.nodes if node.role == "worker")

    @property
    def is_uneven(self) -> bool:
        """Whether devices of its nodes compute at different speeds."""
        return len({node.compute for node in self.nodes if node.role == "worker"}) > 1

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """The kind of device on which trials train: NCCL connects GPUs, one for each rank."""
        return "cuda" if self.backend == "nccl" else "cpu"

    @property
    def profile_of_costs(self) -> str:
        """The profile of costs: the file's, else the usual one of the backend and of the links within nodes."""
        if self.costs is not None and self.costs.profile is not None:
            return self.costs.profile
        if self.backend == "gloo":
            return "gloo-cpu"
        rates = [node.intra_bandwidth or 0.0 for node in self.nodes if node.devices > 1]
        return "nccl-nvlink" if rates and min(rates) > _FASTEST_PCIE else "nccl-pcie"

    @property
    def is_one_machine(self) -> bool:
        """Whether all ranks run on this machine and share its processors and memory."""
        return launcher_traits(self.launcher).is_one_machine

    @property
    def is_emulated(self) -> bool:
        """Whether the network between the nodes is emulated."""
        return launcher_traits(self.launcher).is_emulated

    @property
    def shares_loopback(self) -> bool:
        """Whether nodes share this machine's own network, so that ranks talk over loopback."""
        return shares_loopback(self.launcher)

    @property
    def launcher_options(self) -> RayOptions | KubernetesOptions | None:
        """The section of the cluster file for this cluster's launcher, or None."""
        return {"ray": self.ray, "kubernetes": self.kubernetes}.get(self.launcher)

    def node_index(self, name: str) -> int:
        """Return the position of the node of that name; raise KeyError if there is no such node."""
        return _node_indexes(self)[name]

    def leader(self, node: int) -> int:
        """Return the first rank of a node: it acts as the node's server, and the node's ranks meet at it."""
        return next(rank.index for rank in self.ranks if rank.node == node)

    def worker_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the worker ranks, node by node."""
        return _worker_groups(self)

    def fingerprint(self) -> str:
        """Return a hash of everything that plans depend on: names, ranks, racks, backend, symmetry.

        Rates, hosts and the launcher are left out.
        """
        nodes = [(n.name, n.role, n.devices, n.rack) for n in self.nodes]
        classes = [list(positions) for positions in symmetry_classes(self)]
        # Racks outside pods are known by their nodes.
        pods = [(rack.name, rack.rack) for rack in self.racks if rack.rack is not None]
        return jsonio.content_hash([nodes, classes, self.backend, *([pods] if pods else [])])


@functools.lru_cache(maxsize=256)
def symmetry_classes(cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    """Return the node positions of each class of equal nodes; a node without a declared class is alone in its class.

    The classes are ordered by first member, so their order in the file does not matter.
    """
    class_of = {name: index for index, names in enumerate(cluster.alike) for name in names}
    classes: dict[object, list[int]] = {}
    for position, node in enumerate(cluster.nodes):
        classes.setdefault(class_of.get(node.name, node.name), []).append(position)
    return tuple(tuple(positions) for positions in classes.values())


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


def describe(cluster: ClusterSpec) -> str:
    """Format the cluster as a table: one line for each node, then racks and totals."""
    ranks: dict[int, list[int]] = {}
    for rank in cluster.ranks:
        ranks.setdefault(rank.node, []).append(rank.index)
    classes = [positions for positions in symmetry_classes(cluster) if len(positions) > 1]
    class_of = {position: str(index) for index, positions in enumerate(classes, 1) for position in positions}
    rows = [
        (
            "node",
            "host",
            "role",
            "ranks",
            "out",
            "in",
            "within",
            "in all",
            "nics",
            "memory",
            "compute",
            "storage",
            "rack",
            "alike",
        )
    ]
    for position, node in enumerate(cluster.nodes):
        rows.append(
            (
                node.name,
                node.host,
                node.role,
                _span(ranks[position]),
                format_rate(node.bandwidth_out),
                format_rate(node.bandwidth_in),
                "" if node.intra_bandwidth is None else format_rate(node.intra_bandwidth),
                "" if node.intra_total is None else format_rate(node.intra_total),
                "" if node.nics == 1 else str(node.nics),
                "" if node.memory_bytes is None else format_size(node.memory_bytes),
                "" if node.compute == 1 else f"{node.compute:g}",
                "" if node.storage is None else format_rate(node.storage),
                node.rack or "",
                class_of.get(position, ""),
            )
        )
    costs = "" if cluster.costs is None and cluster.backend == "gloo" else f", costs {cluster.profile_of_costs}"
    if cluster.costs is not None and cluster.costs.figures:
        costs += f" with {_count(len(cluster.costs.figures), 'figure')} changed"
    parts = [f"{cluster.name}: launcher {cluster.launcher}, backend {cluster.backend}{costs}", _table(rows)]
    if cluster.racks:
        uplinks = [(r.name, format_rate(r.uplink_out), format_rate(r.uplink_in), r.rack or "") for r in cluster.racks]
        parts.append(_table([("rack", "uplink out", "uplink in", "in rack"), *uplinks]))
    parts.append(_totals(cluster))
    return "\n\n".join(parts)


def _totals(cluster: ClusterSpec) -> str:
    num_servers = sum(node.role == "server" for node in cluster.nodes)
    counts = [
        _count(len(cluster.nodes), "node"),
        _count(cluster.num_workers, "worker rank"),
        *([_count(num_servers, "server rank")] if num_servers else []),
    ]
    out = format_rate(sum(node.bandwidth_out for node in cluster.nodes))
    into = format_rate(sum(node.bandwidth_in for node in cluster.nodes))
    return f"total: {', '.join(counts)}; {out} out, {into} in"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _span(indexes: list[int]) -> str:
    """Format the ranks of a node, which are consecutive: `3` or `4-7`."""
    return str(indexes[0]) if len(indexes) == 1 else f"{indexes[0]}-{indexes[-1]}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Format rows as aligned columns, without columns that have only a heading."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join(lines)
