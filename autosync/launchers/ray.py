"""The Ray launcher: a placement group on an existing Ray cluster, with a bundle for each node.

The allocation holder (`ray_holder`) keeps the placement group while this process holds it, and ends when this process
is killed: Ray then frees everything of the holder. In each bundle an actor starts the agents of its node.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.agent_link import boot_command
from autosync.launchers.allocation import Allocation, start_held
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.messages import no_python_message
from autosync.launchers.request import LaunchRequest, Process, TrainingScript
from autosync.launchers.shared_resources import SharedResources
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import RayOptions

ADDRESS_VARIABLE = "RAY_ADDRESS"
PIN = 0.001
"""The share of a node's own resource, `node:ADDRESS` (1 in total), that ties a bundle to the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRequest(LaunchRequest):
    """A launch in a placement group of a Ray cluster."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """Format the placement group, its bundles, and the processes in them."""
        options = _options(self.cluster)
        where = options.address if options.address != "auto" else os.environ.get(ADDRESS_VARIABLE, "auto")
        bundles = [
            f"bundle {position} ({node.name}): {json.dumps(bundle)}"
            for position, (node, bundle) in enumerate(zip(self.cluster.nodes, bundles_of(self.cluster), strict=True))
        ]
        group = f"placement group on the Ray cluster at {where}: {options.strategy}"
        # Not super(): a dataclass with slots is made twice, and super() would mean the first class.
        return "\n".join([group, *bundles, LaunchRequest.__str__(self)])


class RayLauncher:
    """Starts the ranks of a cluster whose hosts are the addresses or names of Ray's nodes."""

    control: Literal["loopback", "file", "relayed"] = "relayed"
    is_one_machine = False
    is_emulated = False
    way = "through Ray"
    default_python = sys.executable

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> RayRequest:
        """Plan one actor for each node, and under its agent one process for each rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> RayRequest:
        """Plan a user's training with the environment of `torchrun`; ranks meet at the first worker's address."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return Ray's addresses while the placement group is held; before that, the hosts of the cluster file."""
        holder = _HOLDERS.get(_key(cluster))
        return {node.name: holder.addresses[node.name] if holder else node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[Allocation]:
        """Hold the placement group during the block; all launches on the cluster share it."""
        return _HOLDERS.held(_key(cluster), lambda: _hold(cluster))

    def start(self, request: LaunchRequest) -> AgentLaunch:
        """Start the processes of all nodes at once. If one cannot be started, the others are ended."""
        assert isinstance(request, RayRequest), "a launcher starts what it planned"
        return start_held(request, request.cluster, self.hold(request.cluster), _explain)


_HOLDERS: SharedResources[Allocation] = SharedResources()


def bundles_of(cluster: ClusterSpec) -> list[dict[str, float]]:
    """Return the resources to reserve for each node, in the order of the cluster file."""
    options = _options(cluster)
    pins = [{f"node:{node.host}": PIN} if options.pinned else {} for node in cluster.nodes]
    return [{**_resources(cluster, node, options), **pin} for node, pin in zip(cluster.nodes, pins, strict=True)]


def _resources(cluster: ClusterSpec, node: Node, options: RayOptions) -> dict[str, float]:
    if node.role == "server":
        return {"CPU": 1}
    if options.resources:
        # Whole numbers are printed as they are in the file.
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
        has_agents=True,
        files=files,
        processes=tuple(
            replace(process, reach=("an-actor", f"--bundle={cluster.node_index(process.node)}", *boot))
            for process in processes
        ),
    )


def _hold(cluster: ClusterSpec) -> Allocation:
    options = _options(cluster)
    request = {
        "address": options.address,
        "strategy": options.strategy,
        "nodes": [node.name for node in cluster.nodes],
        "hosts": [node.host for node in cluster.nodes] if options.pinned else None,
        "bundles": bundles_of(replace(cluster, ray=replace(options, pinned=False))),
        "command": boot_command(python_of(cluster)),
    }
    return Allocation("autosync.launchers.ray_holder", request, package="ray")


def _explain(_process: Process, said: str) -> str:
    """Turn the holder's output into a message that tells the user what to do."""
    line = " ".join(said.split())
    if line.endswith(("No such file or directory", "Permission denied")):
        return no_python_message(line.partition(":")[0], line)
    return line[-600:]
