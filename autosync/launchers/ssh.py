"""The ssh launcher: every node is reached by the system's ssh, and a minder there starts its ranks.

The system's ssh, not a library: the user's configuration holds in full (names, ports, keys, jump hosts, agents,
certificates, hardware tokens), host keys are checked as everywhere else, and there is nothing more to install. One
connection a node carries all: what is to be started, output, exit codes, and the control connections of trials with
their token, so that nothing of it stands on a command line and no port is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError
from autosync.launchers import minded
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.line import boot_command
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import LaunchRequest, Process, Script
from autosync.launchers.words import no_python
from autosync.specs.cluster import ClusterSpec

SSH_VARIABLE = "AUTOSYNC_SSH"
"""The ssh command where it is another than `ssh`, with options of its own: `ssh -F cluster.conf`, say."""

_OPTIONS = (
    # No question is asked that nobody answers: an unknown host key, or a password, is an error.
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    # A connection of this launch's own, which ends when it is told to; and nothing but this launch goes through it.
    "-oControlPath=none",
    "-oClearAllForwardings=yes",
    "-oLogLevel=ERROR",
    "-a",
    "-x",
    "-T",
)

_SAID = (
    (r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED", "its host key is not the known one"),
    (r"Permission denied", "it does not accept a key of this user's"),
    (r"Could not resolve hostname|Name or service not known", "no such host"),
    (r"Connection refused", "nobody answers there: is sshd running?"),
    (r"timed out|No route to host|Network is unreachable", "the host cannot be reached"),
    (r"Connection (reset|closed)|closed by remote host|Broken pipe", "the connection was lost"),
)
_HINTS = {
    "its host key is not the known one": "log in once by hand and compare the key, or add it to ~/.ssh/known_hosts",
    "it does not accept a key of this user's": "ssh-copy-id, an agent, or IdentityFile in ~/.ssh/config",
}
_NO_PYTHON = re.compile(r"(not found|cannot execute|No such file|Permission denied)")


class SshLauncher:
    """Starts the ranks of a cluster on the hosts that it names."""

    control: Literal["loopback", "file", "relayed"] = "relayed"

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """One process a rank, on its node's host."""
        return LaunchRequest(minded=True, processes=_reached(cluster, command_processes(cluster, command, logs)))

    def plan_script(self, cluster: ClusterSpec, script: Script, logs: Path) -> LaunchRequest:
        """The same with what `torchrun` gives its ranks; the first worker is met at its host, as the file names it."""
        processes = script_processes(cluster, script, logs, address=self.addresses(cluster)[first_node(cluster)])
        return LaunchRequest(minded=True, files=script.files, processes=_reached(cluster, processes))

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """The hosts, as the file names them: every node must know them by these names."""
        return {node.name: node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """Nothing: the hosts are there."""
        return contextlib.nullcontext(cluster)

    def start(self, request: LaunchRequest) -> MindedProcesses:
        """Log in to all hosts at once and start all processes; if one cannot be started, none is left."""
        return minded.start(request, explain=_explain)


def _reached(cluster: ClusterSpec, processes: Sequence[Process]) -> tuple[Process, ...]:
    way, remote = (*_ssh(), *_OPTIONS, "--"), remote_command(python_of(cluster))
    return tuple(replace(process, reach=(*way, process.host, remote)) for process in processes)


def remote_command(python: str) -> str:
    """What the user's shell on the node is asked to run."""
    return shlex.join(["exec", *boot_command(python)])


def _ssh() -> list[str]:
    given = os.environ.get(SSH_VARIABLE, "ssh")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InputError(f"{SSH_VARIABLE} is {given!r}: {error}", rule="a command as a shell reads it") from None
    if not words:
        raise InputError(f"{SSH_VARIABLE} is empty", rule="the ssh command with its options, or not set")
    return words


def _explain(process: Process, said: str) -> str:
    """What ssh said, in words that say what to do."""
    line = " ".join(said.split())
    python = shlex.split(process.reach[-1])[1]
    if python in line and _NO_PYTHON.search(line):
        return no_python(python, line)
    for pattern, meaning in _SAID:
        if re.search(pattern, line):
            hint = f"; {_HINTS[meaning]}" if meaning in _HINTS else ""
            return f"{meaning} (ssh: {line[-300:]}){hint}"
    return line[-600:]
