"""Tells whether a host is this machine. The local launcher starts ranks nowhere else."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from autosync.errors import Problem

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec

RULE = "the local launcher starts every rank on this machine: host localhost"
HINT = "launcher: ssh reaches other machines"


def is_this_machine(host: str) -> bool:
    """Whether a host in a cluster file is this machine, by its name or a loopback address."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def remote_hosts(cluster: ClusterSpec) -> list[Problem]:
    """Return a problem for each node on another machine, if the cluster's launcher is the local one."""
    if cluster.launcher != "local":
        return []
    return [
        Problem(what=f"{node.name} is on {node.host}", rule=RULE, path=("nodes", position, "host"), hint=HINT)
        for position, node in enumerate(cluster.nodes)
        if not is_this_machine(node.host)
    ]
