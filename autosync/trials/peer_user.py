"""Which user's process is at the other end of a connection, where the kernel says so.

For a Unix socket it has kept that (SO_PEERCRED). For TCP within this machine (its loopback) the other end is a socket
of this machine too, and the kernel's socket table has its owner; one lookup by addresses and ports is 0.04 ms, however
many sockets there are. Reading /proc/net/tcp would tell the same, in a time that an outsider can make long.
"""

from __future__ import annotations

import os
import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_ESTABLISHED = 1
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_HEADER = struct.Struct("=IHHII")
_STATE = struct.Struct("=BB")
_OWNER_OFFSET = 16 + 4 + 48 + 12
"""Behind the header: family, state and timers; the socket's addresses; and three counters."""
_ANSWER_BYTES = 4096
_ANSWER_SECONDS = 1.0


def is_ours(uid: int | None) -> bool:
    """Whether a user may speak for us: this user, or root, from whom nothing can be kept."""
    return uid in (0, os.getuid(), os.geteuid())


def uid_of_peer(connection: socket.socket) -> int | None:
    """The user at the other end; None where the kernel does not say (another machine, or the peer is gone)."""
    try:
        if connection.family == socket.AF_UNIX:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", credentials)[1])
        if connection.family == socket.AF_INET:
            return _owner_of_tcp(connection.getpeername(), connection.getsockname())
    except (OSError, AttributeError, struct.error):
        # Another system than Linux, or a kernel without such tables.
        pass
    return None


def _owner_of_tcp(source: tuple[str, int], destination: tuple[str, int]) -> int | None:
    """The user whose socket has these two ends, if it is a connected socket of this network."""
    if not source[0].startswith("127."):
        return None
    ports = struct.pack(">HH", source[1], destination[1])
    addresses = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host in (source[0], destination[0]))
    wanted = ports + addresses + struct.pack("=I", 0) + _NO_COOKIE
    body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + wanted
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_SECONDS)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + body)
        answer = kernel.recv(_ANSWER_BYTES)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, state = _STATE.unpack_from(answer, _HEADER.size)
    # Of a socket that has been closed the kernel says root.
    return int(struct.unpack_from("=I", answer, _OWNER_OFFSET)[0]) if state == _ESTABLISHED else None
