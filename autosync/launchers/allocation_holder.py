"""The allocation holder: it acquires machines through a library and relays agents' bytes until its stdin ends.

It is a separate process, because such libraries (Ray's, Kubernetes') take over signals, threads and loggers, and
because the launching process may be killed: then stdin ends, and the machines are still given back.

It reads one line of JSON from stdin: the request, and a folder for its socket. It writes lines of JSON: {"note": ...}
while it waits, then {"socket": ..., "addresses": ...} or {"error": ...}. A `holder_relay` connects to the socket to
reach an agent on one node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from autosync.launchers import holder_relay
from autosync.launchers.control_address import short_name

_AGAIN_SECONDS = 0.1


class AllocationError(Exception):
    """The machines cannot be acquired; the message is for the user."""


class AgentStream(Protocol):
    """An agent's stdin and stdout. One thread reads, another writes; any thread may close it."""

    def read(self) -> bytes:
        """Wait for output of the agent and return it; empty at its end."""

    def write(self, data: bytes) -> None:
        """Write to the agent's stdin."""

    def close(self) -> None:
        """End the agent. May be called twice."""

    def last_words(self) -> str:
        """Return why the agent has ended, as far as known."""


class HeldMachines(Protocol):
    """The machines that an allocation holder holds."""

    def addresses(self) -> Mapping[str, str]:
        """Return the address at which other nodes reach each node, by the node's name."""

    def open(self, position: int) -> AgentStream:
        """Start an agent on the node at that position; raise AllocationError with the reason if that fails."""


Hold = Callable[[Mapping[str, Any], Callable[[str], None]], AbstractContextManager[HeldMachines]]
"""Makes a context that holds the requested machines. The second argument shows notes to the user."""


def run(hold: Hold) -> None:
    """Acquire the machines that stdin asks for and hold them until stdin ends."""
    request = json.loads(sys.stdin.readline())
    # Output of the library must not mix with this program's.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**fields: object) -> None:
        told.write(json.dumps(fields) + "\n")
        told.flush()

    signal.signal(signal.SIGTERM, _leave)
    sys.unraisablehook = _leave_again
    threading.Thread(target=_await_end, daemon=True).start()
    try:
        with (
            hold(request, lambda words: tell(note=words)) as machines,
            _socket(Path(request["folder"])) as (listener, path),
        ):
            # Set again, because libraries set signal handlers when they start.
            signal.signal(signal.SIGTERM, _leave)
            threading.Thread(target=_accept, args=(listener, machines), daemon=True).start()
            tell(socket=str(path), addresses=dict(machines.addresses()))
            threading.Event().wait()
    except AllocationError as error:
        tell(error=str(error))


def _await_end() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, holder_relay.CHUNK_BYTES):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(_number: int, _frame: object) -> NoReturn:
    # The machines are being given back: ignore further signals.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


def _leave_again(dropped: Any) -> None:
    """Send the signal again if the exception that it raised was dropped: Python drops those raised in finalizers."""
    if dropped.exc_type is not SystemExit:
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGTERM, _leave)
    # In a thread and later: raised in here, the exception would be dropped as well.
    threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()


@contextlib.contextmanager
def _socket(folder: Path) -> Iterator[tuple[socket.socket, Path]]:
    """Listen on a socket in a private folder, and remove the folder at the end: its maker may be gone by then."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with short_name(folder / "lines") as name:
                listener.bind(name)
            listener.listen(256)
            yield listener, folder / "lines"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: socket.socket, machines: HeldMachines) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_carry, args=(connection, machines), daemon=True).start()


def _carry(connection: socket.socket, machines: HeldMachines) -> None:
    """Start an agent and relay its bytes until it ends."""
    with connection, contextlib.suppress(OSError):
        (position,) = holder_relay.POSITION.unpack(holder_relay.received(connection, holder_relay.POSITION.size))
        try:
            stream = machines.open(position)
        except AllocationError as error:
            holder_relay.send(connection, holder_relay.WORDS, str(error).encode())
            return
        threading.Thread(target=_carry_in, args=(connection, stream), daemon=True).start()
        try:
            while data := stream.read():
                holder_relay.send(connection, holder_relay.OUTPUT, data)
            holder_relay.send(connection, holder_relay.WORDS, stream.last_words().encode())
        finally:
            stream.close()
            # Closing is not enough while the other thread waits on the socket.
            connection.shutdown(socket.SHUT_RDWR)


def _carry_in(connection: socket.socket, stream: AgentStream) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(holder_relay.CHUNK_BYTES):
            stream.write(data)
    # The launching side has ended the connection, or is dead.
    stream.close()
