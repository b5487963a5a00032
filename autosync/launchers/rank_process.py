"""A process that the agent starts for a rank. The agent carries this module to its node.

It needs only the standard library, and no Python newer than 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from autosync.launchers.frames import CHUNK_BYTES
from autosync.launchers.network_interface import find_interface

CONTROL_VARIABLE = "AUTOSYNC_CONTROL_DESCRIPTOR"
SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36
JOB_VARIABLE = "SLURM_JOB_ID"
_IN_SLURM = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "SLURM_NODEID": "GROUP_RANK",
    "SLURM_NNODES": "GROUP_WORLD_SIZE",
}
"""Slurm's names for a rank's place in the training, each with torchrun's name."""


class RankProcess:
    """The process of a rank. It leads its own session, so that its children can be found."""

    def __init__(self, request: dict[str, Any], files: dict[str, str]) -> None:
        environment = dict(os.environ, **files)
        if JOB_VARIABLE in environment:
            # Within a job of Slurm they tell of the agent: each rank would take itself for the only one.
            given = request["environment"]
            environment.update({name: given[same] for name, same in _IN_SLURM.items() if same in given})
        environment.update(request["environment"])
        if "GLOO_SOCKET_IFNAME" not in environment:
            interface = find_interface(request["addresses"])
            if interface:
                environment["GLOO_SOCKET_IFNAME"] = interface
                if request["nics"] == 1:
                    # Without the sign, NCCL takes all interfaces whose names begin so: eth1 would mean eth10 too.
                    environment.setdefault("NCCL_SOCKET_IFNAME", "=" + interface)
        if not Path(request["folder"]).is_dir():
            raise OSError("there is no folder " + request["folder"])
        self.code: int | None = None
        self.control: socket.socket | None = None
        self.to_control = bytearray()
        theirs = None
        if request["control"]:
            self.control, theirs = socket.socketpair()
            self.control.settimeout(0)
            environment[CONTROL_VARIABLE] = str(theirs.fileno())
        log = Path(request["log"]).open("ab") if request["log"] else None  # noqa: SIM115 - handed to the process
        try:
            self.process = subprocess.Popen(
                request["command"],
                cwd=request["folder"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log or subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if theirs is None else (theirs.fileno(),),
                # Safe, because the agent has one thread. The rank ends when the agent ends, for any reason.
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - see above
            )
        finally:
            for end in (log, theirs):
                if end is not None:
                    end.close()
        self.output: int | None = None
        if self.process.stdout is not None:
            self.output = self.process.stdout.fileno()
            os.set_blocking(self.output, False)

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children; continue them if they are stopped."""
        if self.code is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
            os.killpg(self.process.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Return whether the process has ended since the last call, and kill its children then."""
        if self.code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.process.pid, flags) is None:
            return False
        # The process was not waited for yet, so no other process can have its pid.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()
        return True

    def read(self) -> bytes:
        """Return the output that can be read now; empty if there is none."""
        if self.output is None:
            return b""
        try:
            data = os.read(self.output, CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.output = None
        return data


def prctl(option: int, value: int) -> None:
    """Set a property of this process (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end_with_parent() -> None:
    prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL))
