"""The control channel between a trial service and its ranks: framed JSON, authenticated both ways.

`channel` has the frames, `handshake` the proofs, and `control_listener` admits ranks; this module opens the service's
listener and connects ranks to it. An address is `tcp:HOST:PORT`, or `unix:PATH` for ranks in network namespaces of this
machine, or `relayed` if the launcher carries the bytes of ranks on other nodes; see `launchers.control_address`.
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
"""The time for which a refused rank tries again: it may have been refused because too many others were waiting."""
_PAUSE_SECONDS = 0.2


def listen_on_loopback(token: str, num_ranks: int) -> ControlListener:
    """Listen for ranks at a free port of this machine's loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return ControlListener(listener, f"tcp:127.0.0.1:{listener.getsockname()[1]}", token=token, num_ranks=num_ranks)


def listen_in_folder(folder: Path, token: str, num_ranks: int) -> ControlListener:
    """Listen for ranks at a socket file in a folder, which only this user can open."""
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
    """Connect a rank to its service; return once each side has proved to the other that it knows the token.

    A refused rank tries again for RETRY_SECONDS, unless no process listens or the listener does not know the token. A
    relayed rank has only one connection, so it tries once.
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
        # A random pause, so that ranks that were refused together do not try again together.
        time.sleep(random.uniform(0.25, 1.0) * _PAUSE_SECONDS)


def _connect_once(address: str, token: str, rank: int) -> Channel:
    channel = Channel(connection_to(address))
    try:
        introduce(channel, token, rank)
    except BaseException:
        channel.close()
        raise
    return channel
