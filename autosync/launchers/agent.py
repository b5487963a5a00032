"""The agent: a process on each node of a launch. It starts the ranks there and ends them, whatever happens.

The agent reads frames from its stdin and writes frames to its stdout, so it needs nothing but the connection through
which it was started. It ends its ranks and all their children when it is told to, when its stdin closes, and when no
frame arrives for longer than its patience, a time that the launching side sets. So no rank is left when the launching
process is killed or the network is cut.

Other nodes get the text of this file and of the modules that it imports (`agent_link.CARRIED`) through stdin. They
need no autosync: everything else comes from the standard library, and nothing needs a Python newer than 3.8.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autosync.launchers.frames import (
    CHUNK_BYTES,
    CONTROL,
    EXIT,
    FAULT,
    HELLO,
    MAX_TOLD_BYTES,
    OUTPUT,
    PING,
    PONG,
    SIGNAL,
    START,
    STOP,
    TOLD,
    FrameError,
    frame,
    seconds_of,
    whole_frames,
)
from autosync.launchers.rank_process import SET_SUBREAPER, RankProcess, prctl

MAX_PROCESSES = 4096
MAX_WAITING_BYTES = 1 << 22
"""The most output that may wait to be sent. Beyond that, the agent stops reading from its ranks."""
POLL_SECONDS = 0.1
LAST_GRACE_SECONDS = 3.0
"""The time that ranks have to end when the launching side is gone."""
FLUSH_SECONDS = 5.0


class Agent:
    """Reads frames, writes frames, and owns the processes of the ranks on its node."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankProcess] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.is_open = True
        self.patience: float | None = None
        self.heard = time.monotonic()
        self.kill_at: float | None = None
        self.folder: str | None = None
        self.files: dict[str, str] = {}

    def run(self) -> None:
        """Serve until the launching side has said stop or is gone, and all ranks have ended."""
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
        """Wait a moment until something can be read or written, handle it, and look after the ranks."""
        waiting = select.poll()
        if self.is_open:
            waiting.register(0, select.POLLIN)
        if self.outgoing:
            waiting.register(1, select.POLLOUT)
        sources: dict[int, tuple[int, RankProcess]] = {}
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

    def attend(self, descriptor: int, events: int, slot: int, rank: RankProcess) -> None:
        """Pass on a rank's output, or the bytes of its control connection in either direction."""
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
        """Report ranks that have ended, and end the others when their time is over."""
        now = time.monotonic()
        for slot, rank in self.ranks.items():
            if rank.has_ended():
                # The last output goes before the exit code.
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
        """Read frames from the launching side."""
        try:
            data = os.read(0, CHUNK_BYTES)
        except BlockingIOError:
            return
        self.heard = time.monotonic()
        if not data:
            self.is_open = False
            return
        self.incoming += data
        try:
            for kind, slot, payload in whole_frames(self.incoming):
                self.obey(kind, slot, payload)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            # No launch sends such a frame, so the rest of the stream cannot be trusted either.
            sys.stderr.write(f"the agent got a frame that no launch sends: {error!r}\n")
            self.is_open = False

    def obey(self, kind: int, slot: int, payload: bytes) -> None:
        """Act on a frame; raise ValueError, KeyError or TypeError if it is malformed."""
        if kind == START:
            if slot in self.ranks or len(self.ranks) >= MAX_PROCESSES:
                raise FrameError(f"process {slot} runs already, or the node has {MAX_PROCESSES} processes")
            self.start(slot, json.loads(payload))
        elif kind == SIGNAL:
            number = signal.Signals(int(payload))
            for rank in self.ranks.values():
                rank.signal(number)
        elif kind == STOP:
            self.stop(seconds_of(payload))
        elif kind == PING:
            self.patience = seconds_of(payload) if payload else None
            self.send(PONG, slot)
        elif kind != CONTROL:
            raise FrameError(f"a frame of kind {kind}")
        elif slot in self.ranks:
            self.pass_on(self.ranks[slot], payload)

    def pass_on(self, rank: RankProcess, payload: bytes) -> None:
        """Queue bytes for a rank's control connection; an empty payload closes the connection."""
        if len(rank.to_control) + len(payload) > MAX_TOLD_BYTES:
            raise FrameError(f"a rank leaves more than {MAX_TOLD_BYTES} bytes unread")
        if payload:
            rank.to_control += payload
        elif rank.control is not None:
            rank.control.close()
            rank.control = None

    def start(self, slot: int, request: dict[str, Any]) -> None:
        """Start a rank's process, or report why it cannot be started."""
        try:
            self.ranks[slot] = RankProcess(request, self.copied(request["files"]))
        except (OSError, subprocess.SubprocessError) as error:
            self.send(FAULT, slot, str(error).encode("utf-8", "replace")[:CHUNK_BYTES])

    def copied(self, files: dict[str, list[str]]) -> dict[str, str]:
        """Write each file once, and return the variables that name the copies.

        Each variable has a folder of its own, because files of different folders may have the same name.
        """
        for variable, (name, text) in files.items():
            if variable not in self.files:
                if self.folder is None:
                    self.folder = tempfile.mkdtemp(prefix="autosync-")
                path = Path(self.folder) / variable / name
                try:
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(text, encoding="utf-8")
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(path)) from error
                self.files[variable] = str(path)
        return self.files

    def stop(self, grace_seconds: float) -> None:
        """Ask all ranks to end; ranks that have not ended after the grace time are killed."""
        deadline = time.monotonic() + grace_seconds
        self.kill_at = deadline if self.kill_at is None else min(self.kill_at, deadline)
        for rank in self.ranks.values():
            rank.signal(signal.SIGTERM)

    def tell(self, slot: int, rank: RankProcess) -> None:
        """Write queued bytes to a rank's control connection."""
        assert rank.control is not None
        try:
            sent = rank.control.send(rank.to_control)
        except BlockingIOError:
            return
        except OSError:
            self.lose(slot, rank)
            return
        del rank.to_control[:sent]

    def hear(self, slot: int, rank: RankProcess) -> None:
        """Read a rank's control connection and send the bytes to the launching side."""
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

    def lose(self, slot: int, rank: RankProcess) -> None:
        """Report that a rank has closed its control connection."""
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
            # The launching side is gone.
            self.outgoing.clear()
            self.is_open = False
            return
        del self.outgoing[:sent]

    def flush(self) -> None:
        """Send the waiting frames, for at most FLUSH_SECONDS."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while self.outgoing and time.monotonic() < deadline:
            select.select([], [1], [], POLL_SECONDS)
            self.write()


def end_descendants() -> None:
    """Kill the children that ranks left behind. This process has adopted them, because it is a subreaper."""
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
    """Run an agent on stdin and stdout."""
    prctl(SET_SUBREAPER, 1)
    agent = Agent()

    def end(number: int, _frame: object) -> None:
        if agent.is_open:
            agent.send(TOLD, 0, str(number).encode())
        agent.is_open = False

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    agent.run()


if __name__ == "__main__":
    main()
