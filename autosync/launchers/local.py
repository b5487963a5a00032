"""The local launcher: every rank is a process on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from autosync.errors import OperationError
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec

STOP_SECONDS = 5.0


class LocalLauncher:
    """Starts the ranks of a cluster as processes on this machine, one thread each, talking over loopback."""

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """One process a worker rank, with the environment that torch.distributed knows."""
        workers = [rank for rank in cluster.ranks if rank.role == "worker"]
        if len(workers) < len(cluster.ranks):
            raise OperationError(f"{cluster.name} has nodes that only serve; the local launcher starts workers")
        return LaunchRequest(
            processes=tuple(
                Process(
                    rank=rank.index,
                    host=cluster.nodes[rank.node].host,
                    command=tuple(command),
                    environment={
                        "RANK": str(rank.index),
                        "LOCAL_RANK": str(rank.local),
                        "WORLD_SIZE": str(cluster.num_workers),
                        "GLOO_SOCKET_IFNAME": "lo",
                        "OMP_NUM_THREADS": "1",
                        # The user's working directory must not shadow installed packages.
                        "PYTHONSAFEPATH": "1",
                        "PYTHONUNBUFFERED": "1",
                    },
                    log=logs / f"rank-{rank.index}.log",
                )
                for rank in workers
            )
        )

    def start(self, request: LaunchRequest) -> LocalLaunch:
        """Start all processes; if one cannot be started, none is left."""
        launch = LocalLaunch()
        try:
            for process in request.processes:
                launch.add(process)
        except OSError as error:
            launch.stop()
            raise OperationError(f"a rank could not be started: {error}") from error
        return launch


class LocalLaunch:
    """Processes on this machine, ended by their own process ids."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def add(self, process: Process) -> None:
        """Start one process, its output in its log."""
        process.log.parent.mkdir(parents=True, exist_ok=True)
        with process.log.open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    process.command,
                    env={**os.environ, **process.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def exit_codes(self) -> Sequence[int | None]:
        return [process.poll() for process in self._running]

    def stop(self) -> None:
        """Ask, then kill."""
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
