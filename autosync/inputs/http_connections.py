"""Idle connections to HTTP servers, for all files of a process: a server has no more than requests ran at a time."""

from __future__ import annotations

import atexit
import http.client
import os
import threading
from typing import NamedTuple

_MOST_IDLE = 64


class HttpServer(NamedTuple):
    """A server, as a connection needs it."""

    scheme: str
    host: str
    port: int | None


class IdleConnections:
    """Connections that no request uses, the one that was used last at the end.

    A fork closes its copies and begins with none: two processes cannot take turns on one connection.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[tuple[HttpServer, http.client.HTTPConnection]] = []

    def take(self, server: HttpServer) -> http.client.HTTPConnection | None:
        """Return a connection that only the caller has from now on; None if there is none."""
        self._after_fork()
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == server:
                    return self._idle.pop(place)[1]
        return None

    def put(self, server: HttpServer, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for later requests."""
        self._after_fork()
        with self._lock:
            self._idle.append((server, connection))
            dropped = self._idle[:-_MOST_IDLE]
            del self._idle[:-_MOST_IDLE]
        _close(dropped)

    def drop(self, server: HttpServer) -> None:
        """Close what is kept of a server."""
        self._after_fork()
        with self._lock:
            dropped = [one for one in self._idle if one[0] == server]
            self._idle = [one for one in self._idle if one[0] != server]
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


def _close(dropped: list[tuple[HttpServer, http.client.HTTPConnection]]) -> None:
    for _, connection in dropped:
        connection.close()


IDLE = IdleConnections()
"""The idle connections of this process."""
atexit.register(IDLE.close)
