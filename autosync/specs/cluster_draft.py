"""Drafts a cluster spec from a few answers: where the machines are, their hosts, ranks and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autosync.errors import InputError
from autosync.specs.cluster import BackendName, ClusterSpec, Node

DraftLauncher = Literal["ssh", "slurm", "local", "testbed"]

LOCAL_BANDWIDTH = 1.25e9
"""The rate that stands in the file of one machine, where no network is involved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswers:
    """The answers about a cluster.

    `hosts` are host names for ssh and Slurm, and names of emulated hosts for the testbed; `local` has none. `devices`
    is the number of ranks on each node. `bandwidths` are bytes per second: one for all hosts, or one for each.
    """

    name: str
    launcher: DraftLauncher
    hosts: tuple[str, ...] = ()
    devices: int = 1
    bandwidths: tuple[float, ...] = ()
    backend: BackendName = "gloo"
    python: str | None = None


def draft_cluster(answers: ClusterAnswers) -> ClusterSpec:
    """Return the cluster. Nodes with equal links are declared alike."""
    if answers.launcher == "local":
        node = Node(
            name="this",
            host="localhost",
            devices=answers.devices,
            bandwidth_out=LOCAL_BANDWIDTH,
            bandwidth_in=LOCAL_BANDWIDTH,
            # Between GPUs, the profile of costs knows better.
            intra_bandwidth=None if answers.backend == "nccl" else LOCAL_BANDWIDTH,
        )
        return ClusterSpec(name=answers.name, nodes=(node,), launcher="local", backend=answers.backend)
    rates = _rates(answers)
    nodes = tuple(
        Node(name=host, host=host, devices=answers.devices, bandwidth_out=rate, bandwidth_in=rate)
        for host, rate in zip(answers.hosts, rates, strict=True)
    )
    return ClusterSpec(
        name=answers.name,
        nodes=nodes,
        alike=_alike(answers.hosts, rates),
        launcher=answers.launcher,
        backend=answers.backend,
        python=answers.python,
    )


def _rates(answers: ClusterAnswers) -> Sequence[float]:
    num_hosts, given = len(answers.hosts), answers.bandwidths
    if len(given) == 1:
        return given * num_hosts
    if len(given) != num_hosts:
        raise InputError(f"{len(given)} rates for {num_hosts} hosts", rule="one rate for all hosts, or one for each")
    return given


def _alike(hosts: Sequence[str], rates: Sequence[float]) -> tuple[tuple[str, ...], ...]:
    """Return the classes of hosts with equal links. Hosts that are named twice are left to the rules of clusters."""
    if len(set(hosts)) != len(hosts):
        return ()
    classes: dict[float, list[str]] = {}
    for host, rate in zip(hosts, rates, strict=True):
        classes.setdefault(rate, []).append(host)
    return tuple(tuple(names) for names in classes.values() if len(names) > 1)
