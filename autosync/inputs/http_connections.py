"""Idle connections to HTTP servers, for all files of a process: a server has no more than requests ran at a time."""

from __future__ import annotations

import atexit
import http.client
import os
import threading
import time
from typing import NamedTuple

_MOST_IDLE = 64
_IDLE_SECONDS = 60.0
"""A connection that was idle for longer may have ended in silence, as routers end them."""


class HttpServer(NamedTuple):
    """A server, as a connection needs it."""

    scheme: str
    host: str
    port: int | None


class _Idle(NamedTuple):
    """A connection that no request uses, since a time of the monotonic clock."""

    server: HttpServer
    connection: http.client.HTTPConnection
    since: float


class IdleConnections:
    """Connections that no request uses, the one that was used last at the end.

    A fork closes its copies and begins with none: two processes cannot take turns on one connection.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []

    def take(self, server: HttpServer) -> http.client.HTTPConnection | None:
        """Return a connection that only the caller has from now on; None if there is none that may still live."""
        self._after_fork()
        oldest = time.monotonic() - _IDLE_SECONDS
        found = None
        with self._lock:
            dropped = [one for one in self._idle if one.since < oldest]
            self._idle = [one for one in self._idle if one.since >= oldest]
            for place in reversed(range(len(self._idle))):
                if self._idle[place].server == server:
                    found = self._idle.pop(place).connection
                    break
        _close(dropped)
        return found

    def put(self, server: HttpServer, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for later requests."""
        self._after_fork()
        with self._lock:
            self._idle.append(_Idle(server, connection, time.monotonic()))
            dropped = self._idle[:-_MOST_IDLE]
            del self._idle[:-_MOST_IDLE]
        _close(dropped)

    def drop(self, server: HttpServer) -> None:
        """Close what is kept of a server."""
        self._after_fork()
        with self._lock:
            dropped = [one for one in self._idle if one.server == server]
            self._idle = [one for one in self._idle if one.server != server]
        _close(dropped)

    def close(self) -> None:
        """Close all that are kept."""
        self._after_fork()
        with self._lock:
            dropped, self._idle = self._idle, []
        _close(dropped)

    def _after_fork(self) -> None:
        if self._process != os.getpid():
            # The lock may be a copy of one that another thread held. Several threads may come here at once, so the
            # parent's connections are gone before the process is noted.
            dropped, self._idle = self._idle, []
            self._lock, self._process = threading.Lock(), os.getpid()
            _close(dropped)


def _close(dropped: list[_Idle]) -> None:
    for one in dropped:
        one.connection.close()


IDLE = IdleConnections()
"""The idle connections of this process."""
atexit.register(IDLE.close)
