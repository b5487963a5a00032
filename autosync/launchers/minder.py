"""The minder: a process on each machine of a launch that starts the ranks there and ends them, whatever happens.

It reads frames from its stdin and writes frames to its stdout, and so needs nothing but the connection that it was
started through. It ends its ranks, and all that those have started, when it is told to, when its stdin closes, and
when it hears nothing for as long as it was told to be patient: so nothing is left when whoever launched is killed, or
the network between them is cut.

Machines elsewhere get this file's text through their stdin, with that of the modules of autosync's that it imports
(`line.CARRIED`), and need nothing of autosync's to run it: for the rest it is the standard library alone, and nothing
that runs is newer than Python 3.8.

A frame is a kind, a slot (which process it is about) and a payload. To the minder: START (JSON: command, environment,
folder, log, files, control, addresses), SIGNAL (a number), CONTROL (bytes for the rank's control connection; none: its
end), STOP (seconds of grace), PING (seconds of patience; none: without end; the slot is a number that PONG repeats).
From it: HELLO (JSON), OUTPUT, CONTROL, EXIT (a code as subprocess has it), FAULT (why a process could not be started),
PONG, TOLD (the minder itself was sent this signal, and ends).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autosync.launchers.interface import find_interface

START, SIGNAL, CONTROL, STOP, PING = 1, 2, 3, 4, 5
HELLO, OUTPUT, EXIT, FAULT, PONG, TOLD = 11, 12, 13, 14, 15, 16
HEAD = struct.Struct(">BII")
CONTROL_VARIABLE = "AUTOSYNC_CONTROL_DESCRIPTOR"

CHUNK_BYTES = 1 << 16
MAX_WAITING_BYTES = 1 << 22
"""How much may wait to be sent before ranks have to wait with their output."""
POLL_SECONDS = 0.1
LAST_GRACE_SECONDS = 3.0
"""How long ranks may take to end where nobody is there any more to say."""
FLUSH_SECONDS = 5.0
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36


def frame(kind: int, slot: int, payload: bytes = b"") -> bytes:
    """A frame as it goes over the line."""
    return HEAD.pack(kind, slot, len(payload)) + payload


def whole_frames(buffer: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Take the frames that are whole from a buffer."""
    while len(buffer) >= HEAD.size:
        kind, slot, length = HEAD.unpack_from(buffer)
        if len(buffer) < HEAD.size + length:
            return
        payload = bytes(buffer[HEAD.size : HEAD.size + length])
        del buffer[: HEAD.size + length]
        yield kind, slot, payload


class Rank:
    """One process: leader of a session of its own, so that what it starts can be found."""

    def __init__(self, request: dict[str, Any], files: dict[str, str]) -> None:
        environment = dict(os.environ, **files)
        environment.update(request["environment"])
        if "GLOO_SOCKET_IFNAME" not in environment:
            interface = find_interface(request["addresses"])
            if interface:
                environment["GLOO_SOCKET_IFNAME"] = interface
                environment.setdefault("NCCL_SOCKET_IFNAME", interface)
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
                # One thread is all there is here. The process ends with this one, however that ends.
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
        """To the process and what it has started; one that is stopped hears of it too."""
        if self.code is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
            os.killpg(self.process.pid, signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it has, just now. What it started ends with it."""
        if self.code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.process.pid, flags) is None:
            return False
        # While it is not waited for, nobody else can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()
        return True

    def read(self) -> bytes:
        """What it has written; nothing where there is nothing for now, or no more."""
        if self.output is None:
            return b""
        try:
            data = os.read(self.output, CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.output = None
        return data


class Minder:
    """Frames in, frames out, and processes."""

    def __init__(self) -> None:
        self.ranks: dict[int, Rank] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.is_open = True
        self.patience: float | None = None
        self.heard = time.monotonic()
        self.kill_at: float | None = None
        self.folder: str | None = None
        self.files: dict[str, str] = {}

    def run(self) -> None:
        """Mind the ranks until all is over and nobody listens any more, or somebody says so."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        facts = {"python": sys.version.split()[0], "executable": sys.executable, "host": socket.gethostname()}
        self.send(HELLO, 0, json.dumps(facts).encode())
        try:
            while self.kill_at is None or any(rank.code is None for rank in self.ranks.values()):
                self.turn()
            self.flush()
        finally:
            for rank in self.ranks.values():
                rank.signal(signal.SIGKILL)
            end_descendants()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def turn(self) -> None:
        """Wait a little for something to happen, and do what is to be done."""
        waiting = select.poll()
        if self.is_open:
            waiting.register(0, select.POLLIN)
        if self.outgoing:
            waiting.register(1, select.POLLOUT)
        sources: dict[int, tuple[int, Rank]] = {}
        for slot, rank in self.ranks.items():
            if rank.output is not None and len(self.outgoing) < MAX_WAITING_BYTES:
                sources[rank.output] = (slot, rank)
                waiting.register(rank.output, select.POLLIN)
            if rank.control is not None:
                sources[rank.control.fileno()] = (slot, rank)
                events = select.POLLIN if len(self.outgoing) < MAX_WAITING_BYTES else 0
                waiting.register(rank.control, events | (select.POLLOUT if rank.to_control else 0))
        for descriptor, events in waiting.poll(POLL_SECONDS * 1000):
            if descriptor == 0:
                self.receive()
            elif descriptor == 1:
                self.write()
            else:
                self.attend(descriptor, events, *sources[descriptor])
        self.look_after()

    def attend(self, descriptor: int, events: int, slot: int, rank: Rank) -> None:
        """Carry what a rank says, or what is said to it."""
        if descriptor == rank.output:
            data = rank.read()
            if data:
                self.send(OUTPUT, slot, data)
        elif rank.control is not None:
            if events & select.POLLOUT:
                self.tell(slot, rank)
            if events & ~select.POLLOUT and rank.control is not None:
                self.hear(slot, rank)

    def look_after(self) -> None:
        """See who has ended, and whether it is time to end the others."""
        now = time.monotonic()
        for slot, rank in self.ranks.items():
            if rank.has_ended():
                # Its last words come before the news of its end.
                while data := rank.read():
                    self.send(OUTPUT, slot, data)
                self.send(EXIT, slot, str(rank.code).encode())
        if self.patience is not None and now - self.heard > self.patience:
            self.is_open = False
        if not self.is_open and self.kill_at is None:
            self.stop(LAST_GRACE_SECONDS)
        if self.kill_at is not None and now >= self.kill_at:
            for rank in self.ranks.values():
                rank.signal(signal.SIGKILL)

    def receive(self) -> None:
        """Take frames from whoever launched."""
        try:
            data = os.read(0, CHUNK_BYTES)
        except BlockingIOError:
            return
        self.heard = time.monotonic()
        if not data:
            self.is_open = False
            return
        self.incoming += data
        for kind, slot, payload in whole_frames(self.incoming):
            if kind == START:
                self.start(slot, json.loads(payload))
            elif kind == SIGNAL:
                for rank in self.ranks.values():
                    rank.signal(int(payload))
            elif kind == STOP:
                self.stop(float(payload))
            elif kind == PING:
                self.patience = float(payload) if payload else None
                self.send(PONG, slot)
            elif kind == CONTROL and slot in self.ranks:
                rank = self.ranks[slot]
                if payload:
                    rank.to_control += payload
                elif rank.control is not None:
                    rank.control.close()
                    rank.control = None

    def start(self, slot: int, request: dict[str, Any]) -> None:
        """Start a process, or say why it cannot be started."""
        try:
            self.ranks[slot] = Rank(request, self.copied(request["files"]))
        except (OSError, subprocess.SubprocessError) as error:
            self.send(FAULT, slot, str(error).encode("utf-8", "replace"))

    def copied(self, files: dict[str, list[str]]) -> dict[str, str]:
        """Variables that name files, made once in a folder of this launch."""
        for variable, (name, text) in files.items():
            if variable not in self.files:
                if self.folder is None:
                    self.folder = tempfile.mkdtemp(prefix="autosync-")
                path = Path(self.folder) / name
                try:
                    path.write_text(text, encoding="utf-8")
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(path)) from error
                self.files[variable] = str(path)
        return self.files

    def stop(self, grace_seconds: float) -> None:
        """Ask all to end; who has not done so in time is killed."""
        deadline = time.monotonic() + grace_seconds
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        for rank in self.ranks.values():
            rank.signal(signal.SIGTERM)

    def tell(self, slot: int, rank: Rank) -> None:
        """Pass on what was said to a rank."""
        assert rank.control is not None
        try:
            sent = rank.control.send(rank.to_control)
        except BlockingIOError:
            return
        except OSError:
            self.lose(slot, rank)
            return
        del rank.to_control[:sent]

    def hear(self, slot: int, rank: Rank) -> None:
        """Pass on what a rank says."""
        assert rank.control is not None
        try:
            data = rank.control.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.send(CONTROL, slot, data)
        else:
            self.lose(slot, rank)

    def lose(self, slot: int, rank: Rank) -> None:
        """A rank has closed its control connection."""
        if rank.control is not None:
            rank.control.close()
            rank.control = None
            self.send(CONTROL, slot)

    def send(self, kind: int, slot: int, payload: bytes = b"") -> None:
        self.outgoing += frame(kind, slot, payload)

    def write(self) -> None:
        try:
            sent = os.write(1, self.outgoing[:MAX_WAITING_BYTES])
        except BlockingIOError:
            return
        except OSError:
            # Nobody listens: then there is nobody to mind ranks for.
            self.outgoing.clear()
            self.is_open = False
            return
        del self.outgoing[:sent]

    def flush(self) -> None:
        """Send what is left, for a while."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while self.outgoing and time.monotonic() < deadline:
            select.select([], [1], [], POLL_SECONDS)
            self.write()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end_with_parent() -> None:
    _prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


def end_descendants() -> None:
    """Kill whatever ranks have started and left behind: orphans come to this process, as it has asked for."""
    deadline = time.monotonic() + FLUSH_SECONDS
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    while time.monotonic() < deadline:
        try:
            children = [int(word) for word in path.read_text(encoding="ascii").split()]
        except OSError:
            return
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def main() -> None:
    """Mind what whoever started this wants minded."""
    _prctl(_SET_SUBREAPER, 1)
    minder = Minder()

    def end(number: int, _frame: object) -> None:
        if minder.is_open:
            minder.send(TOLD, 0, str(number).encode())
        minder.is_open = False

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    minder.run()


if __name__ == "__main__":
    main()
