"""The local launcher: every rank is a process on this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from autosync.errors import InputError, OperationError
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec

STOP_SECONDS = 5.0


class LocalLauncher:
    """Starts the ranks of a cluster as processes on this machine, one thread each, talking over loopback."""

    control: Literal["loopback", "file"] = "loopback"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """One process a rank, with the environment that torch.distributed knows.

        WORLD_SIZE counts workers: ranks that only serve come after them, and are in no process group of torch's.
        """
        for node in cluster.nodes:
            if not _is_this_machine(node.host):
                raise InputError(
                    f"{node.name} is on {node.host}",
                    rule="the local launcher starts every rank on this machine: host localhost",
                )
        return LaunchRequest(
            processes=tuple(
                Process(
                    rank=rank.index,
                    role=rank.role,
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
                for rank in cluster.ranks
            )
        )

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """Nothing: the machine is there."""
        return contextlib.nullcontext(cluster)

    def start(self, request: LaunchRequest) -> LocalLaunch:
        """Start all processes; if one cannot be started, none is left."""
        launch = LocalLaunch()
        try:
            for process in request.processes:
                launch.add(process)
        except BaseException as error:
            launch.stop()
            if isinstance(error, OSError):
                raise OperationError(f"a rank could not be started: {error}") from error
            raise
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
        """Ask, then kill. Whatever interrupts this, no process is left."""
        running = [process for process in self._running if process.poll() is None]
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in running:
                process.terminate()
                # One that is stopped hears of it only when it goes on.
                process.send_signal(signal.SIGCONT)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in running:
                process.kill()
                process.wait()


def _is_this_machine(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
