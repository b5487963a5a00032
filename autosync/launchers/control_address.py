"""Addresses of control connections, through which ranks talk to the trial service.

The forms are `tcp:HOST:PORT`; `unix:PATH` for ranks in network namespaces of this machine; `relayed` for ranks on other
nodes. A relayed rank gets a descriptor from its agent, and the agent carries the bytes through its own link.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from autosync.launchers.rank_process import CONTROL_VARIABLE

RELAYED = "relayed"
KNOCK = b"!"
"""The first byte that a relayed rank sends. The launching side then connects to the gate, whose timeouts are short."""
CONNECT_SECONDS = 5.0


def connection_to(address: str) -> socket.socket:
    """Connect to an address; raise OSError if nothing listens there."""
    kind, _, place = address.partition(":")
    if kind == RELAYED:
        connection = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
        connection.set_inheritable(False)
        connection.sendall(KNOCK)
        return connection
    if kind != "unix":
        host, _, port = place.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(Path(place)) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


def tcp_place(host: str, port: int) -> str:
    """Return the URL of torch's store at a port of a host: `tcp://10.0.0.1:29500`."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a socket file a name within the limit of 108 bytes, which paths in studies may exceed."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
