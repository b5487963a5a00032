"""The near end of a line through a holder: `relay.py SOCKET POSITION` carries its stdin and stdout through the socket.

It is the command that leads to a machine where no command of the system's does, as `ssh` or `srun` would. It imports
the standard library alone: there is one for every machine, and it should cost nothing.
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
    """What the machine wrote (OUTPUT), or what is to be said of the way to it (WORDS)."""
    connection.sendall(HEAD.pack(kind, len(data)) + data)


def received(connection: socket.socket, length: int) -> bytes:
    """So many bytes; fewer where there are no more."""
    data = bytearray()
    with contextlib.suppress(OSError):
        while len(data) < length and (more := connection.recv(length - len(data))):
            data += more
    return bytes(data)


def carry_in(connection: socket.socket) -> None:
    """From stdin to the machine, until there is no more."""
    with contextlib.suppress(OSError):
        while data := os.read(0, CHUNK_BYTES):
            connection.sendall(data)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


def carry_out(connection: socket.socket) -> None:
    """From the machine to stdout, and words, which come last, to stderr."""
    while len(head := received(connection, HEAD.size)) == HEAD.size:
        kind, length = HEAD.unpack(head)
        view = memoryview(received(connection, length))
        while view:
            view = view[os.write(1 if kind == OUTPUT else 2, view) :]
        if kind == WORDS:
            return
    os.write(2, b"the way to it is gone: the holder has ended")


def main(path: str, position: str) -> None:
    """Carry, until the machine's side ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # By way of its folder: names of sockets are short, and folders for temporary files may be deep.
        folder, _, name = path.rpartition("/")
        connection.connect(f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{name}")
        connection.sendall(POSITION.pack(int(position)))
        threading.Thread(target=carry_in, args=(connection,), daemon=True).start()
        carry_out(connection)


if __name__ == "__main__":
    main(*sys.argv[1:])
