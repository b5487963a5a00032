"""The relay command: `holder_relay.py SOCKET POSITION` connects stdin and stdout to an agent through a holder's socket.

It does the work of `ssh` or `srun` in other launchers. It imports only the standard library, because one such process
runs for every node.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading

HEAD = struct.Struct(">BI")
POSITION = struct.Struct(">I")
OUTPUT, WORDS = 1, 2
CHUNK_BYTES = 1 << 16


def send(connection: socket.socket, kind: int, data: bytes) -> None:
    """Send output of the agent (OUTPUT), or a final message about the connection (WORDS)."""
    connection.sendall(HEAD.pack(kind, len(data)) + data)


def received(connection: socket.socket, length: int) -> bytes:
    """Return `length` bytes, or fewer at the end of the stream."""
    data = bytearray()
    with contextlib.suppress(OSError):
        while len(data) < length and (more := connection.recv(length - len(data))):
            data += more
    return bytes(data)


def carry_in(connection: socket.socket) -> None:
    """Copy stdin to the agent."""
    with contextlib.suppress(OSError):
        while data := os.read(0, CHUNK_BYTES):
            connection.sendall(data)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def carry_out(connection: socket.socket) -> None:
    """Copy the agent's output to stdout, and the final message to stderr."""
    while len(head := received(connection, HEAD.size)) == HEAD.size:
        kind, length = HEAD.unpack(head)
        # In pieces, because the node chooses the length.
        while length and (data := received(connection, min(length, CHUNK_BYTES))):
            length -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(1 if kind == OUTPUT else 2, view) :]
        if kind == WORDS:
            return
    os.write(2, b"the way to it is gone: the holder has ended")


def main(path: str, position: str) -> None:
    """Relay bytes between this process and an agent until the agent's side ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Named through its folder: the paths of sockets must be short, and temporary folders may be deep.
        folder, _, name = path.rpartition("/")
        connection.connect(f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{name}")
        connection.sendall(POSITION.pack(int(position)))
        threading.Thread(target=carry_in, args=(connection,), daemon=True).start()
        carry_out(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
