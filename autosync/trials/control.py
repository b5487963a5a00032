"""The control channel between a trial service and its ranks: framed JSON, authenticated both ways.

`channel` has the frames, `handshake` the proofs, `gate` who is let in; here is where a service listens, and how a rank
gets through to it. An address is `tcp:HOST:PORT`, or `unix:PATH` for ranks in network namespaces of this machine, or
`relayed` where the launcher carries what ranks elsewhere say to a gate here; see `launchers.control_address`.
"""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

from autosync.launchers.control_address import RELAYED, connection_to, short_name
from autosync.trials.channel import Channel, ClosedError, ControlError
from autosync.trials.control_listener import BACKLOG, ControlListener
from autosync.trials.handshake import ImpostorError, introduce

__all__ = [
    "TOKEN_VARIABLE",
    "Channel",
    "ClosedError",
    "ControlError",
    "ControlListener",
    "connect",
    "listen_in_folder",
    "listen_on_loopback",
]

TOKEN_VARIABLE = "AUTOSYNC_CONTROL_TOKEN"  # noqa: S105 - the variable's name, not a token
RETRY_SECONDS = 60.0
"""How long a rank that does not get through tries again: a crowd at the gate may have cost it its place."""
_PAUSE_SECONDS = 0.2


def listen_on_loopback(token: str, num_ranks: int) -> ControlListener:
    """A gate at a free port of this machine's loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return ControlListener(listener, f"tcp:127.0.0.1:{listener.getsockname()[1]}", token=token, num_ranks=num_ranks)


def listen_in_folder(folder: Path, token: str, num_ranks: int) -> ControlListener:
    """A gate at a socket file in a folder, for this user alone."""
    path = folder.resolve() / "control"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return ControlListener(listener, f"unix:{path}", token=token, num_ranks=num_ranks)


def connect(address: str, token: str, rank: int) -> Channel:
    """A rank's connection to its service, once each has proved to the other that it knows the token.

    A rank that is turned away tries again for a while; not where nobody listens, nor where an impostor does. A relayed
    rank has one connection and no other.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return _connect_once(address, token, rank)
        except ImpostorError:
            raise
        except (ControlError, OSError) as error:
            is_gone = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
            if is_gone or address.startswith(RELAYED) or time.monotonic() >= deadline:
                if isinstance(error, ControlError):
                    raise
                raise ClosedError(f"no process listens at {address}: {error}") from error
        # Ranks that were turned away together do not come again together.
        time.sleep(random.uniform(0.25, 1.0) * _PAUSE_SECONDS)


def _connect_once(address: str, token: str, rank: int) -> Channel:
    channel = Channel(connection_to(address))
    try:
        introduce(channel, token, rank)
    except BaseException:
        channel.close()
        raise
    return channel
