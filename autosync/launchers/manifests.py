"""The Kubernetes objects of a cluster: pods that stand for its nodes, as an Indexed Job or a Kubeflow TrainJob.

The pods do nothing by themselves; one launch after another starts agents in them. A pod ends when nothing has run in
it for IDLE_SECONDS, so no pod stays when its maker was killed or cut off. Before the first agent it waits for as long
as FIRST_SECONDS, because the other pods may be pending.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autosync.errors import InputError, Problem
from autosync.launchers.environment import python_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.launch_options import KubernetesOptions

CONTAINER = "node"
IDLE_SECONDS = 300
FIRST_SECONDS = 86_400
END_SECONDS = 10
IDLE = f"""\
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
idle, limit = 0, {FIRST_SECONDS}
while idle < limit:
    time.sleep(5)
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    idle, limit = (0, {IDLE_SECONDS}) if others else (idle + 5, limit)
"""
"""The program of a pod. It ends when no other process has run for IDLE_SECONDS, or when none has come at all for
FIRST_SECONDS."""
INSTANCE_LABEL = "app.kubernetes.io/instance"
ROLE_LABEL = "app.kubernetes.io/component"
_HOST_KEY = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OURS_IN_CONTAINER = ("name", "image", "command", "args")
_OURS_IN_POD = ("containers", "restartPolicy", "subdomain", "hostname")
# The fields of pods and containers that a TrainJob may change in its runtime.
_IN_TRAINER = ("resources", "env")
_IN_CONTAINER_PATCH = ("volumeMounts", "securityContext")
_IN_POD_PATCH = (
    "affinity",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "schedulingGates",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "volumes",
)

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods of one kind: their role, the prefix of their names, and the nodes that they stand for."""

    role: Literal["worker", "server"]
    prefix: str
    nodes: tuple[int, ...]


def options_of(cluster: ClusterSpec) -> KubernetesOptions:
    """Return the section `kubernetes` of the cluster file; raise InputError if it is missing."""
    if cluster.kubernetes is None:
        raise InputError(
            f"the cluster {cluster.name} says nothing of Kubernetes",
            rule="the launcher kubernetes takes a section `kubernetes` with at least an image",
            hint="kubernetes: {image: registry/you/train:1}",
        )
    return cluster.kubernetes


def launch_name(cluster: ClusterSpec) -> str:
    """Return the name of a cluster's objects in Kubernetes."""
    words = re.sub(r"[^a-z0-9]+", "-", cluster.name.lower()).strip("-")
    return f"autosync-{words[:40].strip('-') or 'cluster'}"


def pod_groups(cluster: ClusterSpec) -> tuple[PodGroup, ...]:
    """Return a group for the pods of workers, and one for the pods of server-only nodes if there are any."""
    name = launch_name(cluster)
    kind = options_of(cluster).kind
    groups = []
    for role in ("worker", "server"):
        nodes = tuple(place for place, node in enumerate(cluster.nodes) if node.role == role)
        prefix = f"{name}-{role}s" if kind == "job" else f"{name}-node-0"
        if nodes:
            groups.append(PodGroup(role=role, prefix=prefix, nodes=nodes))
    return tuple(groups)


def pod_addresses(cluster: ClusterSpec) -> dict[str, str]:
    """Return the name of each node's pod in their headless service."""
    name = launch_name(cluster)
    return {
        cluster.nodes[place].name: f"{group.prefix}-{index}.{name}"
        for group in pod_groups(cluster)
        for index, place in enumerate(group.nodes)
    }


def manifests(cluster: ClusterSpec) -> tuple[Manifest, ...]:
    """Return all objects in the order in which they are made; raise InputError for mistakes in the file's section."""
    options = options_of(cluster)
    problems = [*_problems(cluster, options)]
    if problems:
        raise InputError(problems)
    if options.kind == "trainjob":
        return (_train_job(cluster, options),)
    return (*(_job(cluster, options, group) for group in pod_groups(cluster)), _service(cluster, options))


def run_job(cluster: ClusterSpec, words: Sequence[str]) -> Manifest:
    """Return a Job whose pod runs an autosync command in the cluster's image."""
    options = options_of(cluster)
    name = f"{launch_name(cluster)}-run"
    # Not the labels of a launch's pods: this pod may share a machine with them and is not part of their service.
    labels = {"app.kubernetes.io/name": "autosync"}
    command = [python_of(cluster), "-P", "-m", "autosync.cli", *words]
    container = {"name": "run", "image": options.image, "command": command, **_container(options, has_devices=False)}
    pod = {"restartPolicy": "Never", **options.pod, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": options.namespace, "labels": labels},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def _problems(cluster: ClusterSpec, options: KubernetesOptions) -> list[Problem]:
    def wrong(what: str, rule: str, *path: str) -> Problem:
        return Problem(what=what, rule=rule, path=("kubernetes", *path))

    ours = "autosync says this itself"
    problems = [wrong("is given", ours, "container", key) for key in _OURS_IN_CONTAINER if key in options.container]
    problems += [wrong("is given", ours, "pod", key) for key in _OURS_IN_POD if key in options.pod]
    affinity = options.pod.get("affinity", {})
    if not _is_affinity(affinity):
        rule = f"a mapping as in Kubernetes, with a list in podAntiAffinity.{_REQUIRED}"
        problems.append(wrong("is no affinity", rule, "pod", "affinity"))
    elif options.pinned and "nodeAffinity" in affinity:
        rule = "pinned says on which machine each pod runs: one of the two"
        problems.append(wrong("is given beside pinned", rule, "pod", "affinity", "nodeAffinity"))
    if options.kind == "trainjob":
        if any(node.role == "server" for node in cluster.nodes):
            rule = "the nodes of a TrainJob are all alike: clusters with nodes that only serve take kind: job"
            problems.append(wrong("a TrainJob for a cluster with nodes that only serve", rule, "kind"))
        for section, known in (("container", (*_IN_TRAINER, *_IN_CONTAINER_PATCH)), ("pod", _IN_POD_PATCH)):
            rule = f"a TrainJob can give these: {', '.join(known)}; the rest stands in its runtime"
            problems += [
                wrong("is given", rule, section, key)
                for key in getattr(options, section)
                if key not in (*known, *_OURS_IN_CONTAINER, *_OURS_IN_POD)
            ]
    return problems


def _is_affinity(given: object) -> bool:
    """Return whether rules of ours can be added to an affinity."""
    if not isinstance(given, Mapping):
        return False
    others = given.get("podAntiAffinity", {})
    return isinstance(others, Mapping) and isinstance(others.get(_REQUIRED, []), list | tuple)


def _labels(cluster: ClusterSpec, role: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "autosync", INSTANCE_LABEL: launch_name(cluster)}
    return {**labels, ROLE_LABEL: role} if role else labels


def _head(cluster: ClusterSpec, options: KubernetesOptions, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": options.namespace, "labels": _labels(cluster)}


def _service(cluster: ClusterSpec, options: KubernetesOptions) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _head(cluster, options, launch_name(cluster)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {INSTANCE_LABEL: launch_name(cluster)},
        },
    }


def _job(cluster: ClusterSpec, options: KubernetesOptions, group: PodGroup) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _head(cluster, options, group.prefix),
        "spec": {
            "completionMode": "Indexed",
            "completions": len(group.nodes),
            "parallelism": len(group.nodes),
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": IDLE_SECONDS,
            "template": {
                "metadata": {"labels": _labels(cluster, group.role)},
                "spec": {
                    "subdomain": launch_name(cluster),
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": END_SECONDS,
                    **_pod_fields(cluster, options, group),
                    "containers": [
                        {
                            "name": CONTAINER,
                            "image": options.image,
                            "command": idle_command(cluster),
                            **_container(options, has_devices=group.role == "worker"),
                        }
                    ],
                },
            },
        },
    }


def _container(options: KubernetesOptions, *, has_devices: bool) -> dict[str, Any]:
    """Return the container's fields in the cluster file; devices (vendor/NAME resources) only if `has_devices`."""
    fields = dict(options.container)
    if isinstance(fields.get("resources"), Mapping):
        # Clients want quantities as text; people write `nvidia.com/gpu: 4`.
        fields["resources"] = {
            key: {name: str(amount) for name, amount in value.items() if has_devices or "/" not in name}
            if isinstance(value, Mapping)
            else value
            for key, value in fields["resources"].items()
        }
    return fields


def _train_job(cluster: ClusterSpec, options: KubernetesOptions) -> Manifest:
    (group,) = pod_groups(cluster)
    given = _container(options, has_devices=group.role == "worker")
    container = {key: value for key, value in given.items() if key in _IN_CONTAINER_PATCH}
    pod = {
        "metadata": {"labels": _labels(cluster, group.role)},
        "spec": {
            "terminationGracePeriodSeconds": END_SECONDS,
            **_pod_fields(cluster, options, group),
            **({"containers": [{"name": CONTAINER, **container}]} if container else {}),
        },
    }
    nodes = [{"name": "node", "template": {"spec": {"template": pod}}}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _head(cluster, options, launch_name(cluster)),
        "spec": {
            "runtimeRef": {"name": options.runtime},
            "trainer": {
                "image": options.image,
                "command": idle_command(cluster),
                "numNodes": len(group.nodes),
                **({"env": given["env"]} if "env" in given else {}),
                **({"resourcesPerNode": given["resources"]} if "resources" in given else {}),
            },
            "runtimePatches": [
                {
                    "manager": "autosync/launcher",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": nodes}}},
                }
            ],
        },
    }


def _pod_fields(cluster: ClusterSpec, options: KubernetesOptions, group: PodGroup) -> Mapping[str, Any]:
    """Return the further fields of a pod that are in the cluster file, with the rules for its machine."""
    given = {key: value for key, value in options.pod.items() if key != "affinity"}
    return {"affinity": _affinity(cluster, options, group), **given}


def _affinity(cluster: ClusterSpec, options: KubernetesOptions, group: PodGroup) -> Mapping[str, Any]:
    """Return the rule that places each pod on a separate machine, because a node has one network interface.

    Pinned pods go to the named machines. An affinity of the cluster file holds as well.
    """
    apart = {"labelSelector": {"matchLabels": {INSTANCE_LABEL: launch_name(cluster)}}, "topologyKey": _HOST_KEY}
    given: Mapping[str, Any] = options.pod.get("affinity", {})
    others: Mapping[str, Any] = given.get("podAntiAffinity", {})
    affinity: dict[str, Any] = {
        **given,
        "podAntiAffinity": {**others, _REQUIRED: [apart, *others.get(_REQUIRED, [])]},
    }
    if options.pinned:
        hosts = [cluster.nodes[place].host for place in group.nodes]
        terms = [{"matchExpressions": [{"key": _HOST_KEY, "operator": "In", "values": hosts}]}]
        affinity["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}
    return affinity


def idle_command(cluster: ClusterSpec) -> list[str]:
    """Return the command of a pod's container."""
    return [python_of(cluster), "-I", "-S", "-c", IDLE]
