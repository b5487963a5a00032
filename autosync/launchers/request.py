"""A launch as data: which processes run where, with which environment; made without acting, so it can be shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from autosync.specs.cluster import ClusterSpec, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One rank's process: its role, host, command and what is added to the environment; its output goes to `log`."""

    rank: int
    role: Role = "worker"
    host: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """All processes of one launch."""

    processes: tuple[Process, ...]

    def __str__(self) -> str:
        """A shell line a process."""
        lines = []
        for process in self.processes:
            settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in process.environment.items())
            lines.append(f"{process.host}: {settings} {shlex.join(process.command)} > {process.log} 2>&1")
        return "\n".join(lines)


class Launch(Protocol):
    """Processes that were started."""

    def exit_codes(self) -> Sequence[int | None]:
        """Each rank's exit code; None while it runs."""

    def stop(self) -> None:
        """End whatever still runs, and wait until it has. Harmless when all have ended."""


class Launcher(Protocol):
    """Plans a launch purely, then starts it.

    `control` says where whoever starts ranks listens for them: at the machine's loopback address, or at a socket file
    where ranks have another network than the machine.
    """

    control: Literal["loopback", "file"]

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """The request that would run `command` on every rank, workers first; nothing happens yet."""

    def start(self, request: LaunchRequest) -> Launch:
        """Start the processes of a request. Whoever starts them stops them."""

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[object]:
        """Have what every launch on the cluster needs, and keep it from one launch to the next until this is left."""
