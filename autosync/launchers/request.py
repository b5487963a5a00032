"""A launch as data: its processes, nodes and environments. It is planned before anything is started, and printable."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from autosync.launchers.redaction import Redaction
from autosync.specs.cluster import ClusterSpec, Role
from autosync.specs.launchers import LauncherTraits

DEFAULT_PORT = 29500
"""torch's default port of the first rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One rank's process: its role, host, command, additional environment, and the log for its output.

    `nics` is the number of network interfaces of its node. `reach` is the command that leads from this machine to the
    node; empty if the node is this machine.
    """

    rank: int
    role: Role = "worker"
    node: str = ""
    host: str
    nics: int = 1
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path
    reach: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The name of the process in messages: `rank 3 on n1`."""
        return f"rank {self.rank} on {self.node or self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """All processes of one launch.

    `has_agents`: an agent on each node starts the processes and ends them, with their children, when this process is
    gone. `files` are copied to other nodes; the key is the variable that names the copy. The control connections of
    ranks on other nodes are relayed to the address `control` on this machine. `batch_script` does the same launch
    through a batch system. `folder` is the working directory of ranks; None means that of this process.
    """

    processes: tuple[Process, ...]
    has_agents: bool = False
    files: Mapping[str, Path] = field(default_factory=dict)
    control: str | None = None
    batch_script: str | None = None
    folder: str | None = None

    @property
    def shown(self) -> tuple[Process, ...]:
        """The processes, with the secrets in their commands and environments hidden."""
        hiding = Redaction.of(os.environ, *(process.environment for process in self.processes))
        return tuple(
            replace(
                process,
                command=tuple(hiding.words(process.command)),
                environment=hiding.environment(process.environment),
                reach=tuple(hiding.words(process.reach)),
            )
            for process in self.processes
        )

    def __str__(self) -> str:
        """Format one shell line for each process, and the command that reaches each other node; secrets are hidden."""
        lines = []
        reached: set[tuple[str, ...]] = set()
        for process in self.shown:
            if process.reach and process.reach not in reached:
                reached.add(process.reach)
                lines.append(f"{process.host}: reached by {shlex.join(process.reach)}")
                lines += [f"{process.host}: {name} names a copy of {path}" for name, path in self.files.items()]
            settings = "".join(f"{key}={shlex.quote(value)} " for key, value in process.environment.items())
            lines.append(f"{process.host}: {settings}{shlex.join(process.command)} > {process.log} 2>&1")
        return "\n".join(lines)

    def steps_as_comments(self) -> str:
        """Return the same lines as comments of a shell script or of YAML."""
        # Not str(self): the texts of subclasses contain these comments.
        return "\n".join(f"# {line}" for line in LaunchRequest.__str__(self).splitlines())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScript:
    """A user's training: the command of every worker, and that of server-only nodes (None: they run nothing).

    All processes get `environment`, and for each of `files` a variable that names the file or its copy. Ranks meet at
    `port` of the first worker's node; None leaves the port to the launcher.
    """

    command: tuple[str, ...]
    server_command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    port: int | None = None


class Launch(Protocol):
    """The processes of a launch that was started."""

    def exit_codes(self) -> Sequence[int | None]:
        """Return the exit codes in the order of the request: None for a running process, LOST for an unknown end."""

    def lost(self) -> Mapping[int, str]:
        """Return the processes whose end is unknown, by position in the request, each with the reason and the node."""

    def stop(self) -> None:
        """End all processes that still run, and wait until they have ended. May be called again."""


LOST = 255
"""The exit code that stands for an unknown end; it is also ssh's code when ssh has lost its host."""


class ScriptLaunch(Launch, Protocol):
    """The launch of a user's script; agents start its processes."""

    def ended(self) -> Sequence[int]:
        """Return the positions in the request of the processes that have ended, in the order in which they ended."""

    def signal(self, number: int) -> None:
        """Send a signal to all running processes and their children."""


class Launcher(LauncherTraits, Protocol):
    """Plans a launch purely, then starts it.

    `control` says how ranks connect to the launching side: at the loopback address; through a socket file, if ranks
    have another network than this machine; or through a connection that the launch relays.
    """

    control: Literal["loopback", "file", "relayed"]

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """Return the request that would run `command` on every rank, workers first. Starts nothing."""

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> LaunchRequest:
        """Return the request, with agents, that would run a user's training as torchrun does. Starts nothing."""

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return the address at which other nodes reach each node, by the node's name."""

    def start(self, request: LaunchRequest) -> Launch:
        """Start the processes of a request. The caller must stop the launch."""

    def hold(self, cluster: ClusterSpec) -> AbstractContextManager[object]:
        """Acquire the machines that launches on the cluster need, and keep them until the block ends."""


def batch_words(words: Sequence[str]) -> list[str]:
    """Return autosync's own command line for a batch script, which is not to be a dry run."""
    # Words after `--` belong to the user's training, which may have options of the same names.
    end = words.index("--") if "--" in words else len(words)
    return [*(word for word in words[:end] if word not in ("--dry-run", "--json")), *words[end:]]
