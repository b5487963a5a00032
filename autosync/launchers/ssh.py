"""The ssh launcher: the system's ssh reaches every node, and an agent there starts its ranks.

It runs the system's ssh instead of a library. So the user's whole configuration holds (names, ports, keys, jump hosts,
agents, certificates, hardware tokens), host keys are checked as usual, and nothing more has to be installed. One
connection to each node carries requests, output, exit codes, and the control connections of trials with their token. So
no secret is on a command line, and no port is opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autosync.errors import InputError
from autosync.launchers import agent_launch
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.agent_link import boot_command
from autosync.launchers.environment import command_processes, first_node, python_of, script_processes
from autosync.launchers.messages import no_python_message
from autosync.launchers.request import LaunchRequest, Process, TrainingScript
from autosync.specs.cluster import ClusterSpec

SSH_VARIABLE = "AUTOSYNC_SSH"
"""The variable with the ssh command, if it is not `ssh`; for example `ssh -F cluster.conf`."""

_OPTIONS = (
    # ssh must not ask questions: an unknown host key, or a password, is an error.
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    # This connection is for this launch alone and ends with it.
    "-oControlPath=none",
    "-oClearAllForwardings=yes",
    "-oLogLevel=ERROR",
    "-a",
    "-x",
    "-T",
)

_PUT_OFF = "it takes no new connections for now"
_SAID = (
    (r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED", "its host key is not the known one"),
    (r"Permission denied", "it does not accept a key of this user's"),
    (r"Could not resolve hostname|Name or service not known", "no such host"),
    (r"Connection refused", "no server answers there: is sshd running?"),
    (r"timed out|No route to host|Network is unreachable", "the host cannot be reached"),
    (r"stdio forwarding failed|open failed", "the jump host does not lead there"),
    # An sshd drops connections at random when many are about to log in.
    (r"exchange_identification: .*Connection (closed|reset)", _PUT_OFF),
    (r"Connection (reset|closed)|closed by remote host|Broken pipe", "the connection was lost"),
)
_HINTS = {
    _PUT_OFF: "where one jump host leads to many nodes, raise MaxStartups in its sshd_config",
    "its host key is not the known one": "log in once by hand and compare the key, or add it to ~/.ssh/known_hosts",
    "it does not accept a key of this user's": "ssh-copy-id, an agent, or IdentityFile in ~/.ssh/config",
}
_NO_PYTHON = re.compile(r"(not found|cannot execute|No such file|Permission denied)")


class SshLauncher:
    """Starts the ranks of a cluster on the hosts that it names."""

    control: Literal["loopback", "file", "relayed"] = "relayed"
    is_one_machine = False
    is_emulated = False
    way = "by ssh"
    default_python = sys.executable

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        """Plan one process for each rank, on the host of its node."""
        return LaunchRequest(has_agents=True, processes=_reached(cluster, command_processes(cluster, command, logs)))

    def plan_script(self, cluster: ClusterSpec, script: TrainingScript, logs: Path) -> LaunchRequest:
        """Plan a user's training with the environment of `torchrun`; ranks meet at the first worker's host."""
        processes = script_processes(cluster, script, logs, address=self.addresses(cluster)[first_node(cluster)])
        return LaunchRequest(has_agents=True, files=script.files, processes=_reached(cluster, processes))

    def addresses(self, cluster: ClusterSpec) -> Mapping[str, str]:
        """Return the hosts of the cluster file; every node must be able to resolve them."""
        return {node.name: node.host for node in cluster.nodes}

    def hold(self, cluster: ClusterSpec) -> contextlib.AbstractContextManager[object]:
        """Return an empty context: the hosts need not be acquired."""
        return contextlib.nullcontext(cluster)

    def start(self, request: LaunchRequest) -> AgentLaunch:
        """Log in to all hosts at once and start all processes. If one cannot be started, the others are ended."""
        return agent_launch.start(request, explain=_explain, is_put_off=_is_put_off)


def _reached(cluster: ClusterSpec, processes: Sequence[Process]) -> tuple[Process, ...]:
    way, remote = (*_ssh(), *_OPTIONS, "--"), remote_command(python_of(cluster))
    return tuple(replace(process, reach=(*way, process.host, remote)) for process in processes)


def remote_command(python: str) -> str:
    """Return the command that starts an agent, for the user's shell on the node."""
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


def _is_put_off(said: str) -> bool:
    """Return whether a server, such as that of a jump host, has dropped the connection for now, before the login."""
    return _meaning(" ".join(said.split())) == _PUT_OFF


def _meaning(line: str) -> str:
    """Return what ssh's output means for the user; empty if it is not known."""
    return next((meaning for pattern, meaning in _SAID if re.search(pattern, line)), "")


def _explain(process: Process, said: str) -> str:
    """Turn the output of ssh into a reason that tells the user what to do."""
    line = " ".join(said.split())
    python = shlex.split(process.reach[-1])[1]
    if python in line and _NO_PYTHON.search(line):
        return no_python_message(python, line)
    meaning = _meaning(line)
    hint = f"; {_HINTS[meaning]}" if meaning in _HINTS else ""
    return f"{meaning} (ssh: {line[-300:]}){hint}" if meaning else line[-600:]
