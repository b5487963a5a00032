"""Starts Python processes as forks of one that has imported torch, which takes each of them seconds otherwise.

A forked process is like that of `subprocess.Popen`, with its environment, streams and process id, and it takes signals.
But its interpreter is not torn down at its end, its parent is another process than this one, and what it writes into a
pipe is there when it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

MAIN = Path(__file__).with_name("forks_main.py")
START_SECONDS = 120.0


class Forked:
    """A process that was forked; it has what tests and launchers use of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = 1,
        stderr: int | IO[Any] = 2,
        start_new_session: bool = False,
    ) -> None:
        python, *arguments = (os.fspath(one) for one in command)
        assert python == sys.executable, f"{python} is not the Python that is forked"
        assert stdin == subprocess.DEVNULL, "it reads nothing"
        request = {
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or Path.cwd()),
            "start_new_session": start_new_session,
        }
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.settimeout(START_SECONDS)
        self._written: list[IO[bytes]] = []
        with theirs, Path(os.devnull).open("r+b") as nothing:
            out = self._descriptor(stdout, nothing)
            errors = out if stderr == subprocess.STDOUT else self._descriptor(stderr, nothing)
            streams = [nothing.fileno(), out, errors]
            socket.send_fds(_requests(), [json.dumps(request).encode()], [theirs.fileno(), *streams])
        self.pid: int = json.loads(self._answers.recv(64))

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, ...]:
        """Wait for its end, and return what it has written into its pipes."""
        self.wait(timeout)
        found = []
        for file in self._written:
            file.seek(0)
            found.append(file.read().decode())
            file.close()
        self._written = []
        return tuple(found)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may just have ended, before its exit code is here.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        """The exit code, once it is there."""
        if self.returncode is None:
            self._answers.settimeout(seconds)
            try:
                self.returncode = json.loads(self._answers.recv(64))
            except (BlockingIOError, TimeoutError):
                return None
            self._answers.close()
        return self.returncode

    def _descriptor(self, stream: int | IO[Any], nothing: IO[bytes]) -> int:
        if stream == subprocess.DEVNULL:
            return nothing.fileno()
        if stream == subprocess.PIPE:
            # A file, so that who writes much need not wait.
            self._written.append(tempfile.TemporaryFile())  # noqa: SIM115 - `communicate` closes it
            return self._written[-1].fileno()
        return stream if isinstance(stream, int) else stream.fileno()


@functools.cache
def _requests() -> socket.socket:
    """The socket of the process that forks, which is started by the first request and ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            (sys.executable, "-P", MAIN, str(theirs.fileno())),
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait(30)

    atexit.register(end)
    return ours
