"""Where a trial service is heard: addresses of control connections, and connecting to them.

`tcp:HOST:PORT`; `unix:PATH` for ranks in network namespaces of this machine; `relayed` for ranks elsewhere, whose
minder has given them a descriptor and carries what they say through the connection that it was started through.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from autosync.launchers.minder import CONTROL_VARIABLE

RELAYED = "relayed"
KNOCK = b"!"
"""The first byte of a relayed connection: only then is the gate, which is impatient, told that somebody is there."""
CONNECT_SECONDS = 5.0


def connection_to(address: str) -> socket.socket:
    """A connection to an address; OSError where nobody listens."""
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
    """A port of a host as stores are named: `tcp://10.0.0.1:29500`."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name of a file that a socket can have: 108 bytes are all there is, and folders of studies are deep."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
