"""How fast the nodes compute a model, compared with the first worker node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_racks import with_nodes
from autosync.specs.task import Task
from autosync.trials.probe.request import RankAnswer
from autosync.trials.probe.schedule import all_workers

ALIKE = 1.05
"""Nodes whose speeds differ by a smaller factor are equally fast."""


def refuse_one_machine(cluster: ClusterSpec) -> None:
    """Refuse to compare nodes that are one machine."""
    if cluster.is_one_machine:
        raise InputError(
            f"{cluster.name}: all its nodes are this machine, so they compute equally fast",
            rule="a model is timed on nodes that are machines of their own",
        )


def pass_seconds(task: Task, device: torch.device) -> float:
    """Return the time of a step's forward and backward passes on a device."""
    # It loads much that a probe without a model does not need.
    from autosync.specs.profile.run import profile

    timeline = profile(task, device=str(device)).timeline
    return sum(one.seconds for one in (*timeline.forward, *timeline.backward))


def speeds_of(cluster: ClusterSpec, answers: Sequence[RankAnswer]) -> dict[str, float]:
    """Return the speed of each worker node, by name. The slowest rank of a node counts, because all wait for it."""
    slowest: dict[str, float] = {}
    for rank in all_workers(cluster).ranks:
        seconds, node = answers[rank.index].pass_seconds, cluster.nodes[rank.node]
        if node.role != "worker":
            continue
        assert seconds is not None, "every worker was asked to compute the model"
        name = node.name
        slowest[name] = max(slowest.get(name, 0.0), seconds)
    first = next(iter(slowest.values()))
    return alike({name: first / seconds for name, seconds in slowest.items()})


def alike(speeds: Mapping[str, float]) -> dict[str, float]:
    """Give nodes that are equally fast the same speed, three digits of it; those as fast as the first node have 1."""
    classes: list[list[float]] = []
    of_node: dict[str, int] = {}
    for name, speed in sorted(speeds.items(), key=lambda item: item[1]):
        if not classes or speed > ALIKE * classes[-1][0]:
            classes.append([])
        classes[-1].append(speed)
        of_node[name] = len(classes) - 1
    usual = of_node[next(iter(speeds))]
    typical = [float(np.median(one)) for one in classes]
    return {name: float(f"{typical[of_node[name]] / typical[usual]:.3g}") for name in speeds}


def with_speeds(cluster: ClusterSpec, speeds: Mapping[str, float]) -> ClusterSpec:
    """Return the cluster with these speeds of its worker nodes."""
    nodes = [replace(node, compute=speeds[node.name]) if node.name in speeds else node for node in cluster.nodes]
    return with_nodes(cluster, nodes)
