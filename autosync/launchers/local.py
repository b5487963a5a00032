"""The local launcher: every rank is a process on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError, OperationError
from autosync.launchers import agent_launch
from autosync.launchers.environment import process_of, rank_environment, script_environment, script_ranks
from autosync.launchers.request import Launch, LaunchRequest, Process, TrainingScript
from autosync.specs.cluster import ClusterSpec
from autosync.specs.local_hosts import remote_hosts
from autosync.specs.rank_variables import THREADS_VARIABLE, rank_threads

ADDRESS = "127.0.0.1"
INTERFACE = "lo"
STOP_SECONDS = 5.0


class LocalLauncher:
    """Starts the ranks of a cluster as processes on this machine, over loopback."""

    control: Literal["loopback", "file", "relayed"] = "loopback"
    is_one_machine = True
    is_emulated = False
    way = ""
    default_python = sys.executable

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """Plan one process for each rank, with the environment of torch.distributed."""
        _refuse_others(cluster)
        environment = {
            "GLOO_SOCKET_IFNAME": INTERFACE,
            THREADS_VARIABLE: str(rank_threads()),
            # The user's working directory must not shadow installed packages.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return LaunchRequest(
            processes=tuple(
                process_of(cluster, rank, tuple(command), {**rank_environment(cluster, rank), **environment}, logs)
                for rank in cluster.ranks
            )
        )

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> LaunchRequest:
        """Plan a user's training with the environment of `torchrun`; ranks meet at a free port."""
        _refuse_others(cluster)
        port = _free_port() if script.port is None else script.port
        files = {name: str(path.resolve()) for name, path in script.files.items()}
        return LaunchRequest(
            has_agents=True,
            processes=tuple(
                process_of(
                    cluster,
                    rank,
                    command,
                    files | script_environment(cluster, rank, script, address=ADDRESS, port=port, interface=INTERFACE),
                    logs,
                )
                for rank, command in script_ranks(cluster, script)
            ),
        )

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return the loopback address for every node."""
        return {node.name: ADDRESS for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """Return an empty context: this machine need not be acquired."""
        return contextlib.nullcontext(cluster)

    def start(self, request: LaunchRequest) -> Launch:
        """Start all processes. If one cannot be started, the others are ended."""
        if request.has_agents:
            return agent_launch.start(request)
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
    """Processes on this machine, ended by their process ids."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def add(self, process: Process) -> None:
        """Start one process; its output goes to its log."""
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

    def lost(self) -> Mapping[int, str]:
        """Return no process: the exit codes of local processes are always known."""
        return {}

    def stop(self) -> None:
        """Ask all processes to end, then kill the rest. No process is left, even if this call is interrupted."""
        running = [process for process in self._running if process.poll() is None]
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in running:
                process.terminate()
                # A stopped process receives SIGTERM only when it is continued.
                process.send_signal(signal.SIGCONT)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in running:
                process.kill()
                process.wait()


def _refuse_others(cluster: ClusterSpec) -> None:
    if problems := remote_hosts(cluster):
        raise InputError([replace(problem, path=()) for problem in problems[:1]])


def _free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
