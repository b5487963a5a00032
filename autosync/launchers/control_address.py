"""Addresses of control connections, through which ranks talk to the trial service.

`tcp:HOST:PORT`; `unix:PATH` for ranks in network namespaces of this machine; `relayed` for ranks on other nodes. A
relayed rank gets a descriptor from its agent, which carries the bytes through its own connection.
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
"""The first byte of a relayed connection. The gate has short timeouts, so it is called only when a rank speaks."""
CONNECT_SECONDS = 5.0


def connection_to(address: str) -> socket.socket:
    """A connection to an address; OSError where nothing listens."""
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
    """The URL of a store at a port of a host: `tcp://10.0.0.1:29500`."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for a socket file within the limit of 108 bytes, which the folders of studies exceed."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
