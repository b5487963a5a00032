"""The Kubernetes launcher: pods that stand for nodes, made for a tuning run or a training and deleted after it.

A holder (`kubernetes_holder`) makes what `manifests` asks for and deletes it. In each pod a minder is started as
`kubectl exec --stdin` would, and everything goes through that connection to the API server: what is to be started,
output, exit codes, and in trials what service and ranks say to each other. So no pod needs to reach this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.holder import Holder, start_held
from autosync.launchers.line import boot_command
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
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import LaunchRequest, Process, Script
from autosync.launchers.shared import Shared
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesRequest(LaunchRequest):
    """A launch in pods."""

    cluster: ClusterSpec

    def __str__(self) -> str:
        """The manifests, and as comments what is started in the pods."""
        return f"{manifests_text(manifests(self.cluster))}{self.steps_as_comments()}"


class KubernetesLauncher:
    """Starts the ranks of a cluster in pods, one a node."""

    control: Literal["loopback", "file", "relayed"] = "relayed"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> KubernetesRequest:
        """One pod a node, and under its minder one process a rank."""
        return _request(cluster, command_processes(cluster, command, logs), {})

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> KubernetesRequest:
        """The same with what `torchrun` gives its ranks; the first worker is met at its pod."""
        address = self.addresses(cluster)[first_node(cluster)]
        return _request(cluster, script_processes(cluster, script, logs, address=address), script.files)

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Those of the pods while they are held; the names that the service would give them before."""
        holder = _HOLDERS.get(_key(cluster))
        return holder.addresses if holder else pod_addresses(cluster)

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[Holder]:
        """The pods. Launches on the cluster share them until this is left."""
        return _HOLDERS.held(_key(cluster), lambda: _hold(cluster))

    def start(self, request: LaunchRequest) -> MindedProcesses:
        """Start all nodes' processes at once; if one cannot be started, none is left."""
        assert isinstance(request, KubernetesRequest), "a launcher starts what it planned"
        return start_held(request, request.cluster, self.hold(request.cluster), _explain)


_HOLDERS: Shared[Holder] = Shared()


def manifests_text(parts: Sequence[Manifest]) -> str:
    """Manifests as YAML."""
    return str(yaml.dump_all(parts, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120))


class _Dumper(yaml.SafeDumper):
    """Programs in manifests are for people too: text of several lines stands as such."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


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
        minded=True,
        batch_script=manifests_text([run_job(cluster, _own_words())]),
        files=files,
        folder=options.container.get("workingDir"),
        processes=tuple(
            replace(process, host=pods[process.node], reach=(*way, pods[process.node], *boot)) for process in processes
        ),
    )


def _own_words() -> list[str]:
    """The command line that this is part of, to be run for good."""
    return [word for word in sys.argv[1:] if word not in ("--dry-run", "--json")]


def _hold(cluster: ClusterSpec) -> Holder:
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
    return Holder("autosync.launchers.kubernetes_holder", request, package="kubernetes")


def _explain(_process: Process, said: str) -> str:
    return " ".join(said.split())[-600:]
