"""The Kubernetes launcher: pods stand for nodes; they are made for a tuning run or a training and deleted afterwards.

The allocation holder (`kubernetes_holder`) makes the objects of `manifests` and deletes them. In each pod an agent is
started as `kubectl exec --stdin` would. Everything goes through that connection to the API server: requests, output,
exit codes, and the control connections of trials. So no pod needs to reach this machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.agent_link import boot_command
from autosync.launchers.allocation import Allocation, start_held
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.manifests import (
    CONTAINER,
    INSTANCE_LABEL,
    ROLE_LABEL,
    Manifest,
    launch_name,
    manifests,
    options_of,
    pod_addresses,
    pod_groups,
    run_job,
)
from autosync.launchers.redaction import Redaction
from autosync.launchers.request import LaunchRequest, Process, TrainingScript, batch_words
from autosync.launchers.shared_resources import SharedResources
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesRequest(LaunchRequest):
    """A launch in pods."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """Format the manifests without secrets, with the processes in the pods as comments."""
        shown = Redaction.of(os.environ).manifest(list(manifests(self.cluster)))
        return f"{manifests_text(shown)}{self.steps_as_comments()}"


class KubernetesLauncher:
    """Starts the ranks of a cluster in pods, one for each node."""

    control: Literal["loopback", "file", "relayed"] = "relayed"
    is_one_machine = False
    is_emulated = False
    way = "through Kubernetes"
    # The path of Python in an image differs from the one on this machine.
    default_python = "python3"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> KubernetesRequest:
        """Plan one pod for each node, and under its agent one process for each rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> KubernetesRequest:
        """Plan a user's training with the environment of `torchrun`; ranks meet at the first worker's pod."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return the addresses of the pods while they are held; before that, their names in the service."""
        holder = _HOLDERS.get(_key(cluster))
        return holder.addresses if holder else pod_addresses(cluster)

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[Allocation]:
        """Hold the pods during the block; all launches on the cluster share them."""
        return _HOLDERS.held(_key(cluster), lambda: _hold(cluster))

    def start(self, request: LaunchRequest) -> AgentLaunch:
        """Start the processes of all nodes at once. If one cannot be started, the others are ended."""
        assert isinstance(request, KubernetesRequest), "a launcher starts what it planned"
        return start_held(request, request.cluster, self.hold(request.cluster), _explain)


_HOLDERS: SharedResources[Allocation] = SharedResources()


def manifests_text(parts: Sequence[Manifest]) -> str:
    """Format manifests as YAML."""
    return str(yaml.dump_all(parts, Dumper=_ManifestDumper, sort_keys=False, explicit_start=True, width=120))


class _ManifestDumper(yaml.SafeDumper):
    """Writes text of several lines as a block, because people read the programs in manifests."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_ManifestDumper.add_representer(str, _represent_text)


def _key(cluster: ClusterSpec) -> tuple[object, ...]:
    return cluster.name, cluster.nodes, cluster.kubernetes


def _request(cluster: ClusterSpec, processes: Sequence[Process], files: Mapping[str, Path]) -> KubernetesRequest:
    options = options_of(cluster)
    manifests(cluster)
    pods = {name: address.partition(".")[0] for name, address in pod_addresses(cluster).items()}
    way = ("kubectl", "exec", "--stdin", f"--namespace={options.namespace}")
    boot = (f"--container={CONTAINER}", "--", *boot_command(python_of(cluster)))
    return KubernetesRequest(
        cluster=cluster,
        has_agents=True,
        batch_script=manifests_text(Redaction.of(os.environ).manifest([run_job(cluster, batch_words(sys.argv[1:]))])),
        files=files,
        folder=options.container.get("workingDir"),
        processes=tuple(
            replace(process, host=pods[process.node], reach=(*way, pods[process.node], *boot)) for process in processes
        ),
    )


def _hold(cluster: ClusterSpec) -> Allocation:
    options = options_of(cluster)
    groups = [
        {
            "selector": f"{INSTANCE_LABEL}={launch_name(cluster)},{ROLE_LABEL}={group.role}",
            "nodes": [cluster.nodes[place].name for place in group.nodes],
            "hosts": [cluster.nodes[place].host for place in group.nodes] if options.pinned else None,
        }
        for group in pod_groups(cluster)
    ]
    request = {
        "context": options.context,
        "namespace": options.namespace,
        "manifests": list(manifests(cluster)),
        "groups": groups,
        "nodes": [node.name for node in cluster.nodes],
        "command": boot_command(python_of(cluster)),
    }
    return Allocation("autosync.launchers.kubernetes_holder", request, package="kubernetes")


def _explain(_process: Process, said: str) -> str:
    return " ".join(said.split())[-600:]
