"""The Ray launcher: one placement group on a Ray cluster that is there, with a bundle for each node.

A holder (`ray_holder`) has the placement group for as long as it is held here and no longer, even if this process is
killed: Ray takes back what belongs to a driver that is gone. In each bundle an actor starts the node's minders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.holder import Holder, start_held
from autosync.launchers.line import boot_command
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import LaunchRequest, Process, Script
from autosync.launchers.shared import Shared
from autosync.launchers.words import no_python
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import RayOptions

ADDRESS_VARIABLE = "RAY_ADDRESS"
PIN = 0.001
"""Of a node's own resource, `node:ADDRESS`, of which each has 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRequest(LaunchRequest):
    """A launch in a placement group of a Ray cluster."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """The placement group, and the processes in its bundles."""
        options = _options(self.cluster)
        where = options.address if options.address != "auto" else os.environ.get(ADDRESS_VARIABLE, "auto")
        bundles = [
            f"bundle {position} ({node.name}): {json.dumps(bundle)}"
            for position, (node, bundle) in enumerate(zip(self.cluster.nodes, bundles_of(self.cluster), strict=True))
        ]
        group = f"placement group on the Ray cluster at {where}: {options.strategy}"
        # Not super(): a class with slots is made twice.
        return "\n".join([group, *bundles, LaunchRequest.__str__(self)])


class RayLauncher:
    """Starts the ranks of a cluster whose hosts are the addresses or names of Ray's nodes."""

    control: Literal["loopback", "file", "relayed"] = "relayed"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> RayRequest:
        """One actor a node, and under its minder one process a rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> RayRequest:
        """The same with what `torchrun` gives its ranks; the first worker is met at its node's address."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """As Ray has them while the placement group is held; the hosts before."""
        holder = _HOLDERS.get(_key(cluster))
        return {node.name: holder.addresses[node.name] if holder else node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[Holder]:
        """The placement group. Launches on the cluster share it until this is left."""
        return _HOLDERS.held(_key(cluster), lambda: _hold(cluster))

    def start(self, request: LaunchRequest) -> MindedProcesses:
        """Start all nodes' processes at once; if one cannot be started, none is left."""
        assert isinstance(request, RayRequest), "a launcher starts what it planned"
        return start_held(request, request.cluster, self.hold(request.cluster), _explain)


_HOLDERS: Shared[Holder] = Shared()


def bundles_of(cluster: ClusterSpec) -> list[dict[str, float]]:
    """What is reserved for each node, in the order of the file."""
    options = _options(cluster)
    pins = [{f"node:{node.host}": PIN} if options.pinned else {} for node in cluster.nodes]
    return [{**_resources(cluster, node, options), **pin} for node, pin in zip(cluster.nodes, pins, strict=True)]


def _resources(cluster: ClusterSpec, node: Node, options: RayOptions) -> dict[str, float]:
    if node.role == "server":
        return {"CPU": 1}
    if options.resources:
        # Files have whole numbers, and so has what is printed.
        return {name: int(amount) if amount == int(amount) else amount for name, amount in options.resources.items()}
    return {"CPU": node.devices, **({"GPU": node.devices} if cluster.backend == "nccl" else {})}


def _options(cluster: ClusterSpec) -> RayOptions:
    return cluster.ray or RayOptions()


def _key(cluster: ClusterSpec) -> tuple[object, ...]:
    return cluster.nodes, _options(cluster)


def _request(cluster: ClusterSpec, processes: Sequence[Process], files: Mapping[str, Path]) -> RayRequest:
    options = _options(cluster)
    if options.pinned and options.strategy in ("PACK", "STRICT_PACK") and len(cluster.nodes) > 1:
        raise InputError(
            f"ray: strategy {options.strategy} for {len(cluster.nodes)} nodes, each of which has a host",
            rule="nodes that the file's hosts pin are spread: STRICT_SPREAD or SPREAD, or pinned: false",
        )
    boot = ("--", *boot_command(python_of(cluster)))
    return RayRequest(
        cluster=cluster,
        minded=True,
        files=files,
        processes=tuple(
            replace(process, reach=("an-actor", f"--bundle={cluster.node_index(process.node)}", *boot))
            for process in processes
        ),
    )


def _hold(cluster: ClusterSpec) -> Holder:
    options = _options(cluster)
    request = {
        "address": options.address,
        "strategy": options.strategy,
        "nodes": [node.name for node in cluster.nodes],
        "hosts": [node.host for node in cluster.nodes] if options.pinned else None,
        "bundles": bundles_of(replace(cluster, ray=replace(options, pinned=False))),
        "command": boot_command(python_of(cluster)),
    }
    return Holder("autosync.launchers.ray_holder", request, package="ray")


def _explain(_process: Process, said: str) -> str:
    """What the holder said, in words that say what to do."""
    line = " ".join(said.split())
    if line.endswith(("No such file or directory", "Permission denied")):
        return no_python(line.partition(":")[0], line)
    return line[-600:]
