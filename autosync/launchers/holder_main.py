"""A holder's own side: it holds machines by a library's means, and carries lines to them until its stdin ends.

A process of its own, because such libraries (Ray's, Kubernetes') take signals, threads and loggers for themselves, and
because whoever launches may be killed: then stdin ends, and the machines are given back all the same.

It reads one line of JSON from stdin, what to hold and a folder for the socket; and writes lines of JSON: {"note": ...}
while it waits, then {"socket": ..., "addresses": ...}, or {"error": ...}. At the socket a `relay` asks for a line to
one machine.
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

from autosync.launchers import relay
from autosync.launchers.address import short_name


class HoldError(Exception):
    """The machines cannot be had: why, in words for the user."""


class Stream(Protocol):
    """A minder's stdin and stdout. One thread reads, one writes; any closes."""

    def read(self) -> bytes:
        """What the minder has written, when there is something; nothing at its end."""

    def write(self, data: bytes) -> None:
        """For the minder's stdin."""

    def close(self) -> None:
        """End it. May be called twice."""

    def last_words(self) -> str:
        """Why it has ended, as far as that is known."""


class Machines(Protocol):
    """What a holder holds."""

    def addresses(self) -> Mapping[str, str]:
        """Where each node is reached by the others, by the node's name."""

    def open(self, position: int) -> Stream:
        """A minder on the node at that position in the cluster; HoldError says why there can be none."""


Hold = Callable[[Mapping[str, Any], Callable[[str], None]], AbstractContextManager[Machines]]
"""Holds what is asked for while it is entered. The function it is given tells the user what is being waited for."""


def run(hold: Hold) -> None:
    """Hold what stdin asks for until stdin ends."""
    request = json.loads(sys.stdin.readline())
    # What the library prints is no line of ours.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**fields: object) -> None:
        told.write(json.dumps(fields) + "\n")
        told.flush()

    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_await_end, daemon=True).start()
    try:
        with (
            hold(request, lambda words: tell(note=words)) as machines,
            _socket(Path(request["folder"])) as (listener, path),
        ):
            # Again: libraries have handlers of their own, which they set as they start.
            signal.signal(signal.SIGTERM, _leave)
            threading.Thread(target=_accept, args=(listener, machines), daemon=True).start()
            tell(socket=str(path), addresses=dict(machines.addresses()))
            threading.Event().wait()
    except HoldError as error:
        tell(error=str(error))


def _await_end() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, relay.CHUNK_BYTES):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(_number: int, _frame: object) -> NoReturn:
    # Once is enough: what is held is being given back.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


@contextlib.contextmanager
def _socket(folder: Path) -> Iterator[tuple[socket.socket, Path]]:
    """A socket in a folder that is nobody else's. Whoever made it may be gone by the end."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with short_name(folder / "lines") as name:
                listener.bind(name)
            listener.listen(256)
            yield listener, folder / "lines"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: socket.socket, machines: Machines) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_carry, args=(connection, machines), daemon=True).start()


def _carry(connection: socket.socket, machines: Machines) -> None:
    """One line, from its first to its last byte."""
    with connection, contextlib.suppress(OSError):
        (position,) = relay.POSITION.unpack(relay.received(connection, relay.POSITION.size))
        try:
            stream = machines.open(position)
        except HoldError as error:
            relay.send(connection, relay.WORDS, str(error).encode())
            return
        threading.Thread(target=_carry_in, args=(connection, stream), daemon=True).start()
        try:
            while data := stream.read():
                relay.send(connection, relay.OUTPUT, data)
            relay.send(connection, relay.WORDS, stream.last_words().encode())
        finally:
            stream.close()
            # Closing it is not enough while the other thread waits at it.
            connection.shutdown(socket.SHUT_RDWR)


def _carry_in(connection: socket.socket, stream: Stream) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(relay.CHUNK_BYTES):
            stream.write(data)
    # Whoever had the line has ended it, or is dead.
    stream.close()
