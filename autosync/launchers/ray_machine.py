"""What runs on a node of a Ray cluster: an actor that starts minders there and passes their bytes on.

It is carried to the node by value, so nothing of autosync's is needed there to start ranks: it imports the standard
library alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

CHUNK_BYTES = 1 << 18
MAX_CALLS = 32
"""How many calls may be under way: a reader waits in each minder's."""

# Twice removed: Ray kills the children of an actor that ends, and a minder must first end its ranks.
_DETACH = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}")
"""


class RayMachine:
    """Minders on one node, by number."""

    def __init__(self) -> None:
        self._minders: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, bytearray] = {}

    def start(self, number: int, command: list[str]) -> None:
        """Start a minder."""
        minder = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", _DETACH, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._minders[number] = minder
        self._said[number] = bytearray()
        threading.Thread(target=self._listen, args=(number,), daemon=True).start()
        minder.wait()

    def _listen(self, number: int) -> None:
        errors = self._minders[number].stderr
        assert errors is not None, "it was asked for"
        while data := errors.read(CHUNK_BYTES):
            self._said[number] += data

    def read(self, number: int) -> bytes:
        """What a minder has written, when there is something; nothing at its end."""
        output = self._minders[number].stdout
        assert output is not None, "it was asked for"
        return os.read(output.fileno(), CHUNK_BYTES)

    def write(self, number: int, data: bytes) -> None:
        """For a minder's stdin. A minder that has ended reads nothing: its reader knows."""
        entry = self._minders[number].stdin
        assert entry is not None, "it was asked for"
        with contextlib.suppress(OSError, ValueError):
            view = memoryview(data)
            while view:
                view = view[entry.write(view) :]

    def close(self, number: int) -> None:
        """End a minder's stdin, which ends its ranks and then itself."""
        entry = self._minders[number].stdin
        assert entry is not None, "it was asked for"
        with contextlib.suppress(OSError):
            entry.close()

    def said(self, number: int) -> str:
        """What a minder has written to stderr."""
        return self._said[number].decode("utf-8", "replace")
