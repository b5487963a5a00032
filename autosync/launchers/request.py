"""A launch as data: which processes run where, with which environment; made without acting, so it can be shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from autosync.specs.cluster import ClusterSpec, Role

DEFAULT_PORT = 29500
"""Where the first rank is met unless told otherwise: as torch has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One rank's process: its role, host, command and what is added to the environment; its output goes to `log`.

    `reach` is the command that leads to the machine where it runs, from this one; empty where that is this machine.
    """

    rank: int
    role: Role = "worker"
    node: str = ""
    host: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path
    reach: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The process in messages: `rank 3 on n1`."""
        return f"rank {self.rank} on {self.node or self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """All processes of one launch.

    `minded` ones have a minder on their machine (`minder`), which ends them when whoever started them is gone, and
    whatever they have started too. `files` are carried to machines elsewhere: a variable that names the copy, and the
    file here. `control` is the address here that the control connections of ranks elsewhere are led to. `batch_script`
    is what a batch system takes to do the same by itself. `folder` is where ranks run, if not in the folder of that
    name in which whoever launches is.
    """

    processes: tuple[Process, ...]
    minded: bool = False
    files: Mapping[str, Path] = field(default_factory=dict)
    control: str | None = None
    batch_script: str | None = None
    folder: str | None = None

    def __str__(self) -> str:
        """A shell line a process, and before those of each machine elsewhere how that is reached."""
        lines = []
        reached: set[tuple[str, ...]] = set()
        for process in self.processes:
            if process.reach and process.reach not in reached:
                reached.add(process.reach)
                lines.append(f"{process.host}: reached by {shlex.join(process.reach)}")
                lines += [f"{process.host}: {name} names a copy of {path}" for name, path in self.files.items()]
            settings = "".join(f"{key}={shlex.quote(value)} " for key, value in process.environment.items())
            lines.append(f"{process.host}: {settings}{shlex.join(process.command)} > {process.log} 2>&1")
        return "\n".join(lines)

    def steps_as_comments(self) -> str:
        """The same as comments of a shell script or of YAML."""
        # Not str(self): those that print more than this have these comments in it.
        return "\n".join(f"# {line}" for line in LaunchRequest.__str__(self).splitlines())


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A user's training: what every worker runs, and what nodes that only serve run beside them (None: nothing).

    All have `environment`, and for each entry of `files` a variable that names that file, or a copy where it is not.
    `port` is where the first worker is met: None leaves it to the launcher.
    """

    command: tuple[str, ...]
    server_command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    port: int | None = None


class Launch(Protocol):
    """Processes that were started."""

    def exit_codes(self) -> Sequence[int | None]:
        """Each process's exit code, in the order of the request; None while it runs. One that is lost has LOST."""

    def lost(self) -> Mapping[int, str]:
        """Those of which nobody can say how they ended, by their place in the request: why, with the node's name."""

    def stop(self) -> None:
        """End whatever still runs, and wait until it has. Harmless when all have ended."""


LOST = 255
"""The exit code of a process that nobody knows of any more. It is what ssh says where it has lost its host."""


class MindedLaunch(Launch, Protocol):
    """Processes that were started with minders."""

    def ended(self) -> Sequence[int]:
        """Those that have ended, by their place in the request, the first one first."""

    def signal(self, number: int) -> None:
        """Send a signal to all that run and to what they have started."""


class Launcher(Protocol):
    """Plans a launch purely, then starts it.

    `control` says where whoever starts ranks listens for them: at the machine's loopback address, at a socket file
    where ranks have another network than the machine, or at one to which the launch relays what they say.
    """

    control: Literal["loopback", "file", "relayed"]

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """The request that would run `command` on every rank, workers first; nothing happens yet."""

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> LaunchRequest:
        """The request, minded, that would run a user's training as torchrun does; nothing happens yet."""

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Where ranks on other nodes reach each node, by the node's name."""

    def start(self, request: LaunchRequest) -> Launch:
        """Start the processes of a request. Whoever starts them stops them."""

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[object]:
        """Have what every launch on the cluster needs, and keep it from one launch to the next until this is left."""
