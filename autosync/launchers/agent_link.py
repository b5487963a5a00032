"""The link from the launching side to the agent of one node, through the pipes of the command that reaches it."""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
import select
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources

from autosync.launchers import frames

BOOT = "import sys,zlib,base64;exec(zlib.decompress(base64.b64decode(sys.stdin.readline())))"
"""The program on the command line that starts an agent: it reads the agent's text from stdin and runs it."""
CARRIED = ("frames", "network_interface", "rank_process")
"""The modules that travel with the agent, each after the modules that it imports."""
PING_SECONDS = 3.0
SILENCE_SECONDS = 15.0
"""A node that is silent for this long counts as gone: agents answer pings at once."""
PATIENCE_SECONDS = 30.0
"""An agent on another node ends its ranks if it gets no ping for this long: this machine then counts as gone."""
START_SECONDS = 25.0
_CHUNK_BYTES = 1 << 16
MAX_SAID_BYTES = 4000
"""How much output of the command that reaches a node is kept for error messages."""
_HELLO_HEAD = frames.HEAD.pack(frames.HELLO, 0, 0)[:5]
"""The first bytes of a HELLO, which is the first frame of every agent."""
_PYTHON = re.compile(rb'"python": "(\d[\w.+]{1,30})"', re.ASCII)
_JUNK_SECONDS = 0.5
"""The time to collect further output of a shell for the error message."""
_MAX_LINES, _MAX_COLUMNS = 5, 200
_ROOM = "autosync.launchers"
_PROGRAM = """\
import sys, types
for name, text in {carried!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({agent!r}, "agent", "exec"))
"""


class AgentLink:
    """The link to one agent, reached by the command `reach`, or on this machine if `reach` is empty.

    A thread of the link calls `on_frame` for every frame, and `on_end` once, with the reason why the link ended.
    """

    def __init__(
        self,
        reach: Sequence[str],
        *,
        on_frame: Callable[[int, int, bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self.is_here = not reach
        self._patience = b"" if self.is_here else str(PATIENCE_SECONDS).encode()
        self._sending = threading.Lock()
        self._counting = threading.Lock()
        self._said = bytearray()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._heard = time.monotonic()
        self.why_ended = ""
        self.breach = ""
        """How the node broke the agent protocol, in words for the user; empty if it did not."""
        self.python = ""
        """The version of the agent's Python, once the agent has said HELLO; empty if it has not told it."""
        self._asked: Counter[int] = Counter()
        self._process = subprocess.Popen(
            tuple(reach) or boot_command(sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The launch passes Ctrl-C on. Without a terminal, the command cannot ask for a password.
            start_new_session=True,
            bufsize=0,
        )
        self._threads = [
            threading.Thread(target=work, name=f"autosync-link-{name}", daemon=True)
            for name, work in (("words", self._read_words), ("pings", self._ping), ("frames", self._read))
        ]
        for thread in self._threads:
            thread.start()
        self.send_raw(base64.b64encode(zlib.compress(agent_program().encode(), 9)) + b"\n")

    @property
    def is_over(self) -> bool:
        """Whether the link has ended."""
        return self._over.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether the agent has said HELLO."""
        return self._ready.is_set()

    @property
    def said(self) -> str:
        """The end of what the command that reaches the node has said on stderr."""
        return self._said.decode("utf-8", "replace").strip()

    def await_ready(self, deadline: float) -> bool:
        """Wait until the agent has said HELLO; return false at the deadline or when the link has ended."""
        while not self._ready.wait(0.05):
            if self._over.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def ask(self, number: int) -> None:
        """Ask for a PONG with this number. It arrives after the answers to all earlier frames."""
        with self._counting:
            self._asked[number] += 1
        self.send(frames.PING, number, self._patience)

    def send(self, kind: int, slot: int = 0, payload: bytes = b"") -> None:
        """Send a frame. Does nothing if the link has ended: `on_end` reports that."""
        self.send_raw(frames.frame(kind, slot, payload))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._process.stdin is not None, "it was asked for"
        view = memoryview(data)
        with self._sending, contextlib.suppress(OSError, ValueError):
            while view:
                view = view[self._process.stdin.write(view) :]

    def close(self, seconds: float) -> None:
        """Wait for the agent to end, at most `seconds`, then end the link: an agent without a link ends its ranks."""
        try:
            self._over.wait(seconds)
        finally:
            with contextlib.suppress(OSError):
                self._process.kill()
            self._process.wait()
            for thread in self._threads:
                thread.join(1.0)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert pipe is not None, "it was asked for"
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it was asked for"
        buffer = bytearray()
        why = "what came from it could not be taken"
        try:
            why = self._read_all(self._process.stdout.fileno(), buffer) or self._last_words()
        except frames.FrameError as error:
            # The frames that follow cannot be found any more.
            self._process.kill()
            why = self.breach = self.breach or f"it broke the agent protocol: {error}"
        except OSError as error:
            # Perhaps this machine's disk is full, and output of the ranks cannot be kept.
            why = f"what came from it could not be kept on this machine: {error}"
        finally:
            self.why_ended = why
            self._over.set()
            self._on_end(why)

    def _read_all(self, descriptor: int, buffer: bytearray) -> str:
        """Pass frames on until the stream ends, and return the reason for the end; empty if it is unknown."""
        while True:
            if not can_read(descriptor, 1.0):
                if self._ready.is_set() and not self.is_here and time.monotonic() - self._heard > SILENCE_SECONDS:
                    self._process.kill()
                    return f"no sign of life for {SILENCE_SECONDS:g} s"
                continue
            data = os.read(descriptor, _CHUNK_BYTES)
            if not data:
                return ""
            self._heard = time.monotonic()
            buffer += data
            if not self._ready.is_set() and not _HELLO_HEAD.startswith(buffer[: len(_HELLO_HEAD)]):
                self.breach = _of_shell(bytes(buffer) + self._rest(descriptor))
                raise frames.FrameError
            for kind, slot, payload in frames.whole_frames(buffer, frames.CHUNK_BYTES):
                self._take(kind, slot, payload)

    def _take(self, kind: int, slot: int, payload: bytes) -> None:
        """Check a frame and pass it on. Every PONG must have been asked for, and only one HELLO may come."""
        if kind == frames.HELLO and not self._ready.is_set():
            told = _PYTHON.search(payload)
            self.python = told[1].decode() if told else ""
            self._ready.set()
            return
        if kind not in frames.FROM_AGENT or kind == frames.HELLO or not self._ready.is_set():
            raise frames.FrameError(f"kind {kind}, about process {slot}: {_shown(payload[:_MAX_COLUMNS])}")
        if kind == frames.PONG:
            with self._counting:
                if not self._asked[slot]:
                    raise frames.FrameError(f"a PONG {slot} that was not asked for")
                self._asked[slot] -= 1
        self._on_frame(kind, slot, payload)

    def _rest(self, descriptor: int) -> bytes:
        """Return the bytes that arrive within the next `_JUNK_SECONDS`."""
        rest, deadline = b"", time.monotonic() + _JUNK_SECONDS
        while len(rest) < MAX_SAID_BYTES and (left := deadline - time.monotonic()) > 0:
            if can_read(descriptor, left):
                data = os.read(descriptor, _CHUNK_BYTES)
                if not data:
                    break
                rest += data
        return rest

    def _read_words(self) -> None:
        assert self._process.stderr is not None, "it was asked for"
        with contextlib.suppress(OSError):
            while data := os.read(self._process.stderr.fileno(), _CHUNK_BYTES):
                self._said = (self._said + data)[-MAX_SAID_BYTES:]

    def _last_words(self) -> str:
        """Return the last output of the command that reached the node."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._threads[0].join(1.0)
        return self.said or f"it ended with exit code {self._process.returncode}"

    def _ping(self) -> None:
        if self.await_ready(math.inf):
            while not self._over.wait(PING_SECONDS):
                self.ask(0)


def can_read(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor can be read, or has ended. `select.select` takes no descriptor above 1023."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _of_shell(printed: bytes) -> str:
    """Return the message about a shell that prints text before the agent does."""
    lines = [line for line in printed.partition(_HELLO_HEAD)[0].splitlines() if line.strip()]
    told = "; ".join(_shown(line) for line in lines[:_MAX_LINES]) or _shown(printed[:_MAX_COLUMNS])
    more = f"; and {len(lines) - _MAX_LINES} lines more" if len(lines) > _MAX_LINES else ""
    return (
        f"the shell there prints before it runs a command: {told}{more}. That goes into the connection: let it print"
        " only where there is a terminal (in ~/.bashrc before the first output: [[ $- == *i* ]] || return)"
    )


def _shown(data: bytes) -> str:
    """Return bytes that came from a node as printable text."""
    text = data[:_MAX_COLUMNS].decode("utf-8", "replace")
    return repr("".join(c if c.isprintable() else "?" for c in text.strip()))


def boot_command(python: str) -> tuple[str, ...]:
    """Return the command that starts an agent with this Python, here or on another node."""
    return (python, "-I", "-S", "-c", BOOT)


def agent_program() -> str:
    """Return the agent and the modules that it imports as one program, because its node may have no autosync."""
    carried = {f"{_ROOM}.{name}": _text_of(name) for name in CARRIED}
    return _PROGRAM.format(carried=carried, agent=_text_of("agent"))


def _text_of(name: str) -> str:
    return resources.files(_ROOM).joinpath(f"{name}.py").read_text("utf-8")
