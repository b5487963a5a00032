"""The launching side's line to one machine's minder: frames through the pipes of the command that reaches it."""

from __future__ import annotations

import base64
import contextlib
import math
import os
import select
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from importlib import resources

from autosync.launchers import minder

BOOT = "import sys,zlib,base64;exec(zlib.decompress(base64.b64decode(sys.stdin.readline())))"
"""The program that every minder's machine is given on its command line; the minder's text comes through its stdin."""
CARRIED = ("interface",)
"""Modules beside the minder that it imports, and that travel with it."""
PING_SECONDS = 3.0
SILENCE_SECONDS = 15.0
"""How long a machine may be silent before it counts as gone: minders answer pings at once."""
PATIENCE_SECONDS = 30.0
"""How long a minder elsewhere waits for a ping before it takes this machine for gone, and ends its ranks."""
START_SECONDS = 25.0
_CHUNK_BYTES = 1 << 16
_MAX_SAID = 4000
_ROOM = "autosync.launchers"
_PROGRAM = """\
import sys, types
for name, text in {carried!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
exec(compile({minder!r}, "minder", "exec"))
"""


class Line:
    """One minder, reached by a command or (an empty one) on this machine.

    `on_frame` gets every frame, `on_end` once why the line ended, both in a thread of the line's own.
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
        self._said = bytearray()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._heard = time.monotonic()
        self.why_ended = ""
        self._process = subprocess.Popen(
            tuple(reach) or boot_command(sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is ours to pass on; and no terminal, so that nothing there asks for a password.
            start_new_session=True,
            bufsize=0,
        )
        self._threads = [
            threading.Thread(target=work, name=f"autosync-line-{name}", daemon=True)
            for name, work in (("words", self._read_words), ("pings", self._ping), ("frames", self._read))
        ]
        for thread in self._threads:
            thread.start()
        self.send_raw(base64.b64encode(zlib.compress(minders_program().encode(), 9)) + b"\n")

    @property
    def is_over(self) -> bool:
        """Whether the line has ended."""
        return self._over.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether the minder has said that it is there."""
        return self._ready.is_set()

    def await_ready(self, deadline: float) -> bool:
        """Wait until the minder has said that it is there; false if it is late, or the line has ended."""
        while not self._ready.wait(0.05):
            if self._over.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def ask(self, number: int) -> None:
        """Ask for an answer with this number, which comes after all that was sent before. (Pings as such have none.)"""
        self.send(minder.PING, number, self._patience)

    def send(self, kind: int, slot: int = 0, payload: bytes = b"") -> None:
        """Send a frame. Nothing happens where the line has ended: `on_end` tells of that."""
        self.send_raw(minder.frame(kind, slot, payload))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._process.stdin is not None, "it was asked for"
        view = memoryview(data)
        with self._sending, contextlib.suppress(OSError, ValueError):
            while view:
                view = view[self._process.stdin.write(view) :]

    def close(self, seconds: float) -> None:
        """Wait so long for the other side to end, then end the line: a minder without one ends its ranks."""
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
        except OSError as error:
            # This machine's disk is full, say: nothing of what the ranks do can be kept.
            why = f"what came from it could not be kept on this machine: {error}"
        finally:
            self.why_ended = why
            self._over.set()
            self._on_end(why)

    def _read_all(self, descriptor: int, buffer: bytearray) -> str:
        """Hand on frames until there are no more; why there are none, where that is known here."""
        while True:
            if not select.select([descriptor], [], [], 1.0)[0]:
                if self._ready.is_set() and not self.is_here and time.monotonic() - self._heard > SILENCE_SECONDS:
                    self._process.kill()
                    return f"no sign of life for {SILENCE_SECONDS:g} s"
                continue
            data = os.read(descriptor, _CHUNK_BYTES)
            if not data:
                return ""
            self._heard = time.monotonic()
            buffer += data
            for kind, slot, payload in minder.whole_frames(buffer):
                if kind == minder.HELLO:
                    self._ready.set()
                else:
                    self._on_frame(kind, slot, payload)

    def _read_words(self) -> None:
        assert self._process.stderr is not None, "it was asked for"
        with contextlib.suppress(OSError):
            while data := os.read(self._process.stderr.fileno(), _CHUNK_BYTES):
                self._said = (self._said + data)[-_MAX_SAID:]

    def _last_words(self) -> str:
        """What the command that reached the machine said as it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._threads[0].join(1.0)
        said = self._said.decode("utf-8", "replace").strip()
        return said or f"it ended with exit code {self._process.returncode}"

    def _ping(self) -> None:
        if self.await_ready(math.inf):
            while not self._over.wait(PING_SECONDS):
                self.ask(0)


def boot_command(python: str) -> tuple[str, ...]:
    """What starts a minder under a Python, here or elsewhere."""
    return (python, "-I", "-S", "-c", BOOT)


def minders_program() -> str:
    """The minder and what it imports as one program: where it runs there is nothing to import that from."""
    carried = {f"{_ROOM}.{name}": _text_of(name) for name in CARRIED}
    return _PROGRAM.format(carried=carried, minder=_text_of("minder"))


def _text_of(name: str) -> str:
    return resources.files(_ROOM).joinpath(f"{name}.py").read_text("utf-8")
