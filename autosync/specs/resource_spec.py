"""Reads AutoDist's resource_spec.yml as a cluster.

AutoDist (petuum/autodist, autodist/resource_spec.py and its multi-node tutorial) describes a cluster by addresses, GPU
and CPU indexes, one chief, named ssh settings and a bandwidth in Gbit/s. Files that AutoDist would refuse are refused.
The ssh settings are checked and dropped: user, port and key come from the user's own ssh configuration.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autosync import documents
from autosync.documents import STRICT, Document
from autosync.errors import InputError, Path, Problem
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_rules import unknown_name

BYTES_PER_SECOND = 1e9 / 8
"""The bytes per second of 1 Gbit/s, the unit of `network_bandwidth`."""

_KEYS: Mapping[object, str] = {
    "name": "address",
    "host": "address",
    "devices": "gpus",
    "bandwidth_out": "network_bandwidth",
    "bandwidth_in": "network_bandwidth",
}
"""For each field of a node, the key of a resource spec that gives its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResourceNode:
    """One machine. If no bandwidth is given, AutoDist warns and assumes 1 Gbit/s."""

    __pydantic_config__ = STRICT

    address: str
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    chief: bool = False
    ssh_config: str | None = None
    network_bandwidth: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _SshEntry:
    __pydantic_config__ = STRICT

    username: str = ""
    port: int = 22
    python_venv: str = ""
    key_file: str = ""
    shared_envs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResourceSpec:
    __pydantic_config__ = STRICT

    nodes: tuple[_ResourceNode, ...]
    ssh: Mapping[str, _SshEntry] = field(default_factory=dict)


def is_resource_spec(value: Any) -> bool:
    """Whether a value has AutoDist's form: no schema, and nodes with addresses."""
    if not isinstance(value, Mapping) or "schema" in value or not isinstance(value.get("nodes"), list):
        return False
    return any(isinstance(node, Mapping) and "address" in node for node in value["nodes"])


def build_cluster(fields: Mapping[str, Any], *, name: str, document: Document | None = None) -> ClusterSpec:
    """Build the cluster of a resource spec.

    A node with GPUs is a worker with a rank for each GPU. A node without GPUs is a server-only node if others have GPUs
    (AutoDist's parameter servers), else a worker with one rank. NCCL is the backend if every node has GPUs.
    """
    spec = documents.from_plain(dict(fields), into=_ResourceSpec, document=document)
    problems = list(_mistakes(spec))
    has_gpus = any(entry.gpus for entry in spec.nodes)
    nodes = tuple(_node(entry, has_gpus=has_gpus) for entry in spec.nodes)
    try:
        cluster = ClusterSpec(
            name=name,
            nodes=nodes,
            launcher="ssh" if len(nodes) > 1 else "local",
            backend="nccl" if all(entry.gpus for entry in spec.nodes) else "gloo",
        )
    except InputError as error:
        known = {problem.path for problem in problems}
        found = dict.fromkeys(_in_file(problem) for problem in error.problems)
        raise InputError([*problems, *(p for p in found if p.path not in known)]) from None
    if problems:
        raise InputError(problems)
    return cluster


def dump_resource_spec(cluster: ClusterSpec) -> dict[str, Any]:
    """Return the cluster in AutoDist's format: addresses, devices, and the slower direction of each interface.

    Ranks without GPUs become CPUs. The first node is the chief. ssh settings are left out.
    """
    kind = "gpus" if cluster.backend == "nccl" else "cpus"
    nodes = [
        {
            "address": node.host,
            kind if node.devices else "cpus": list(range(max(node.devices, 1))),
            "network_bandwidth": min(node.bandwidth_out, node.bandwidth_in) / BYTES_PER_SECOND,
            **({"chief": True} if position == 0 else {"ssh_config": "all"}),
        }
        for position, node in enumerate(cluster.nodes)
    ]
    return {"nodes": nodes, "ssh": {"all": {"port": 22}}}


def _in_file(problem: Problem) -> Problem:
    match problem.path:
        case ("nodes", position, key):
            return replace(problem, path=("nodes", position, _KEYS[key]))
    return problem


def _node(entry: _ResourceNode, *, has_gpus: bool) -> Node:
    is_server = has_gpus and not entry.gpus
    rate = entry.network_bandwidth * BYTES_PER_SECOND
    return Node(
        name=entry.address,
        host=entry.address,
        role="server" if is_server else "worker",
        devices=0 if is_server else max(len(entry.gpus), 1),
        bandwidth_out=rate,
        bandwidth_in=rate,
    )


def _mistakes(spec: _ResourceSpec) -> Iterator[Problem]:
    """Yield everything that AutoDist refuses or fails on later."""
    is_single = len(spec.nodes) == 1
    chiefs = [position for position, entry in enumerate(spec.nodes) if entry.chief]
    if not chiefs and not is_single:
        rule = "exactly one node has chief: true, the one that the program is started on"
        yield Problem(what="no node is the chief", rule=rule, path=("nodes",))
    for position in chiefs[1:]:
        rule = f"exactly one node is the chief, and {spec.nodes[chiefs[0]].address} is"
        yield Problem(what="a second chief", rule=rule, path=("nodes", position, "chief"))
    for position, entry in enumerate(spec.nodes):
        yield from _in_node(entry, ("nodes", position), spec, is_single=is_single)
    for name, ssh in spec.ssh.items():
        if not 1 <= ssh.port <= 65535:
            yield Problem(what=f"{ssh.port} is no port", rule="1 to 65535", path=("ssh", name, "port"))


def _in_node(entry: _ResourceNode, place: Path, spec: _ResourceSpec, *, is_single: bool) -> Iterator[Problem]:
    if not is_single and _is_loopback(entry.address):
        rule = "with several nodes each is known to the others by its address"
        yield Problem(what=f"{entry.address!r} is a loopback address", rule=rule, path=(*place, "address"))
    yield from _in_indexes(entry.gpus, (*place, "gpus"))
    yield from _in_indexes(entry.cpus, (*place, "cpus"))
    if not (math.isfinite(entry.network_bandwidth) and entry.network_bandwidth > 0):
        rule = "network_bandwidth is in Gbit/s and above 0"
        path = (*place, "network_bandwidth")
        yield Problem(what=f"{entry.network_bandwidth:g} Gbit/s is no bandwidth", rule=rule, path=path)
    if entry.ssh_config is not None and entry.ssh_config not in spec.ssh:
        yield unknown_name("ssh config", entry.ssh_config, spec.ssh, (*place, "ssh_config"))
    if entry.ssh_config is None and not entry.chief and not is_single:
        rule = "every node but the chief names an entry of the ssh section"
        yield Problem(what="is missing", rule=rule, path=(*place, "ssh_config"))


def _in_indexes(indexes: tuple[int, ...], path: Path) -> Iterator[Problem]:
    seen: set[int] = set()
    for position, index in enumerate(indexes):
        rule = "indexes of devices are 0 or more, each given once"
        if index < 0:
            yield Problem(what=f"{index} is no index", rule=rule, path=(*path, position))
        elif index in seen:
            yield Problem(what=f"{index} is given twice", rule=rule, path=(*path, position))
        seen.add(index)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
