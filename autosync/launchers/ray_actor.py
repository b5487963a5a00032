"""An actor on a node of a Ray cluster: it starts agents there and passes their bytes on.

Ray sends the actor's code to the node, so the node needs no autosync. It imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

CHUNK_BYTES = 1 << 18
MAX_SAID_BYTES = 4000
"""How much of an agent's stderr is kept: as much as in `agent_link`, which this module cannot import."""
MAX_CALLS = 32
"""The most concurrent calls of an actor: for each agent, one call waits for output."""

# Agents are detached from the actor: Ray kills the children of an ended actor, but an agent must first end its ranks.
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


class RayActor:
    """Starts agents on one node and passes their bytes on; each agent has a number."""

    def __init__(self) -> None:
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, bytearray] = {}

    def start(self, number: int, command: list[str]) -> None:
        """Start an agent."""
        agent = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", _DETACH, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._agents[number] = agent
        self._said[number] = bytearray()
        threading.Thread(target=self._listen, args=(number,), daemon=True).start()
        agent.wait()

    def _listen(self, number: int) -> None:
        errors = self._agents[number].stderr
        assert errors is not None, "it was asked for"
        while data := errors.read(CHUNK_BYTES):
            self._said[number] = (self._said[number] + data)[-MAX_SAID_BYTES:]

    def read(self, number: int) -> bytes:
        """Wait for output of an agent and return it; empty at its end."""
        output = self._agents[number].stdout
        assert output is not None, "it was asked for"
        return os.read(output.fileno(), CHUNK_BYTES)

    def write(self, number: int, data: bytes) -> None:
        """Write to an agent's stdin. Does nothing if the agent has ended: its reader notices that."""
        entry = self._agents[number].stdin
        assert entry is not None, "it was asked for"
        with contextlib.suppress(OSError, ValueError):
            view = memoryview(data)
            while view:
                view = view[entry.write(view) :]

    def close(self, number: int) -> None:
        """Close an agent's stdin, so that the agent ends its ranks and then itself."""
        entry = self._agents[number].stdin
        assert entry is not None, "it was asked for"
        with contextlib.suppress(OSError):
            entry.close()

    def said(self, number: int) -> str:
        """Return the end of an agent's output on stderr."""
        return self._said[number].decode("utf-8", "replace")
