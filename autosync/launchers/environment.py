"""Builds the processes of ranks, with the environment that `torchrun` sets, so that scripts see no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autosync.launchers.request import DEFAULT_PORT, Process, TrainingScript
from autosync.specs.cluster import ClusterSpec, Rank
from autosync.specs.launchers import launcher_traits
from autosync.specs.rank_variables import NODE_VARIABLE, THREADS_VARIABLE, rank_threads


def rank_environment(cluster: ClusterSpec, rank: Rank) -> dict[str, str]:
    """Return the variables that identify a rank. WORLD_SIZE counts workers; server-only ranks come after them."""
    return {"RANK": str(rank.index), "LOCAL_RANK": str(rank.local), "WORLD_SIZE": str(cluster.num_workers)}


def script_ranks(cluster: ClusterSpec, script: TrainingScript) -> list[tuple[Rank, tuple[str, ...]]]:
    """Return the ranks of a training that run a command, each with its command."""
    commands = {"worker": script.command, "server": script.server_command}
    return [(rank, command) for rank in cluster.ranks if (command := commands[rank.role]) is not None]


def script_environment(
    cluster: ClusterSpec, rank: Rank, script: TrainingScript, *, address: str, port: int, interface: str | None
) -> dict[str, str]:
    """Return the environment that `torchrun` sets, with the node's name and the training's own variables added."""
    node = cluster.nodes[rank.node]
    workers = [position for position, one in enumerate(cluster.nodes) if one.role == "worker"]
    groups = {}
    if rank.role == "worker":
        groups = {"GROUP_RANK": str(workers.index(rank.node)), "GROUP_WORLD_SIZE": str(len(workers))}
    # When the workers are done, servers would log how torch's store ends.
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"} if rank.role == "server" else {}
    return {
        **rank_environment(cluster, rank),
        "LOCAL_WORLD_SIZE": str(max(node.devices, 1)),
        **groups,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        NODE_VARIABLE: node.name,
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        THREADS_VARIABLE: str(rank_threads()),
        "PYTHONUNBUFFERED": "1",
        **quiet,
        **script.environment,
    }


def python_of(cluster: ClusterSpec) -> str:
    """Return the path of the ranks' Python: from the cluster file, else the launcher's default."""
    return cluster.python or launcher_traits(cluster.launcher).default_python


def process_of(
    cluster: ClusterSpec, rank: Rank, command: tuple[str, ...], environment: Mapping[str, str], logs: Path
) -> Process:
    """Return a rank's process for a request, with its log."""
    node = cluster.nodes[rank.node]
    return Process(
        rank=rank.index,
        role=rank.role,
        node=node.name,
        host=node.host,
        nics=node.nics,
        command=command,
        environment=environment,
        log=logs / f"rank-{rank.index}.log",
    )


def command_processes(cluster: ClusterSpec, command: Sequence[str], logs: Path) -> tuple[Process, ...]:
    """Return the processes of a command that every rank runs, for launchers of other nodes."""
    # The working directory must not shadow installed packages.
    environment = {THREADS_VARIABLE: str(rank_threads()), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return tuple(
        process_of(cluster, rank, tuple(command), {**rank_environment(cluster, rank), **environment}, logs)
        for rank in cluster.ranks
    )


def script_processes(cluster: ClusterSpec, script: TrainingScript, logs: Path, *, address: str) -> tuple[Process, ...]:
    """Return the processes of a user's training, for launchers of other nodes; ranks meet at `address`."""
    port = DEFAULT_PORT if script.port is None else script.port
    return tuple(
        process_of(
            cluster,
            rank,
            command,
            script_environment(cluster, rank, script, address=address, port=port, interface=None),
            logs,
        )
        for rank, command in script_ranks(cluster, script)
    )


def first_node(cluster: ClusterSpec) -> str:
    """Return the name of the node where ranks meet: the first worker's node."""
    return cluster.nodes[cluster.ranks[0].node].name
