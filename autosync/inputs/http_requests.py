"""Reads ranges of a file from an HTTP server, with retries within a limit.

A server that is overloaded (429, 500, 502, 503, 504), slow, or that ends a connection early is asked again. Any other
answer is an error at once. Each error has the file and the host.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from autosync.errors import InputError, OperationError, Problem

_BUSY = frozenset({429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_MAX_MOVES = 5
_LONGEST_PAUSE_SECONDS = 10.0
_PIECE_BYTES = 2**16
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The limits of retries: how often a request is repeated, and how long one try may take.

    The pause before a retry begins with `pause_seconds` and doubles, unless the server states one.
    """

    num_retries: int = 4
    timeout_seconds: float = 30.0
    pause_seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.num_retries < 0 or not self.timeout_seconds > 0 or self.pause_seconds < 0:
            raise InputError(f"is {self}", rule="retries and pauses of 0 or more, and a timeout above 0")


class _TryAgain(Exception):  # noqa: N818 - not an error yet
    """A try that failed in a way that may pass."""

    def __init__(self, what: str, pause_seconds: float | None = None) -> None:
        super().__init__(what)
        self.pause_seconds = pause_seconds


class HttpFile:
    """A file that an HTTP server gives in ranges. Connections are used again, except in a fork."""

    def __init__(self, url: str, patience: Patience) -> None:
        self.url = shown_url(url)
        self.host = host_of(url)
        self._whole_url = url
        self._patience = patience
        self._idle = _IdleConnections()
        # The first byte tells the size: many servers of signed URLs refuse HEAD.
        (_, self._num_bytes, self._mark), _ = self._patiently(0, 1)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def version(self) -> str:
        return f"{self._num_bytes}-{self._mark}"

    def read(self, start: int, length: int) -> tuple[bytes, int]:
        if length == 0:
            return b"", 0
        (data, num_bytes, mark), num_retries = self._patiently(start, length)
        if (num_bytes, mark) != (self._num_bytes, self._mark):
            how = f"it had {self._num_bytes} bytes, it has {num_bytes}" if num_bytes != self._num_bytes else "its tag"
            raise OperationError(f"{self.url}: the file on {self.host} changed while it was in use: {how}")
        if len(data) != length:
            raise OperationError(f"{self.url}: {self.host} gave {len(data)} of {length} bytes from byte {start}")
        return data, num_retries

    def _patiently(self, start: int, length: int) -> tuple[tuple[bytes, int, str], int]:
        """Return the result of `_once` and the number of retries."""
        began = time.monotonic()
        for number in range(self._patience.num_retries + 1):
            try:
                return self._once(self._whole_url, start, length, _MAX_MOVES), number
            except _TryAgain as failed:
                if number == self._patience.num_retries:
                    what = f"{failed} (bytes {start} to {start + length}, {number + 1} tries"
                    raise OperationError(
                        f"{self.url}: {self.host} {what} in {time.monotonic() - began:.1f} s)"
                    ) from failed
                pause = failed.pause_seconds
                if pause is None:
                    # Spread, so that workers that were refused together do not come back together.
                    pause = self._patience.pause_seconds * 2**number * random.uniform(0.5, 1.5)
                time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    def _once(self, url: str, start: int, length: int, moves_left: int) -> tuple[bytes, int, str]:
        """Return bytes, the size of the whole file, and its tag."""
        deadline = time.monotonic() + self._patience.timeout_seconds
        address = urlsplit(url)
        key = (address.scheme.lower(), address.netloc)
        target = (address.path or "/") + (f"?{address.query}" if address.query else "")
        connection = self._connected(key, address)
        is_reusable = False
        try:
            headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            status = answer.status
            if status in (206, 416):
                body = _body(answer, length, deadline) if status == 206 else b""
                result = self._understood(answer, body, start, length)
                # A connection with unread bytes would give them to the next request.
                is_reusable = not answer.read(1) and not answer.will_close
                return result
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgain(_in_words(error)) from error
        finally:
            if is_reusable:
                self._idle.put(key, connection)
            else:
                connection.close()
        if status in _MOVED and moves_left and (place := answer.headers.get("Location")):
            return self._once(self._moved(url, place), start, length, moves_left - 1)
        raise self._refusal(status, answer)

    def _understood(
        self, answer: http.client.HTTPResponse, body: bytes, start: int, length: int
    ) -> tuple[bytes, int, str]:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
        if match is None:
            raise OperationError(f"{self.url}: {self.host} gave a range without a readable Content-Range")
        num_bytes = int(match[3])
        if answer.status == 416 and not (start == 0 and num_bytes == 0):
            raise OperationError(f"{self.url}: ends at byte {num_bytes} on {self.host}; bytes from {start} were asked")
        expected = (start, min(start + length, num_bytes) - 1)
        if answer.status == 206 and (match[1] is None or (int(match[1]), int(match[2])) != expected):
            raise OperationError(f"{self.url}: {self.host} gave bytes {match[1]} to {match[2]}, not those asked for")
        if answer.status == 206 and len(body) != expected[1] - expected[0] + 1:
            raise _TryAgain(f"gave {len(body)} of {expected[1] - expected[0] + 1} bytes")
        return body, num_bytes, answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""

    def _refusal(self, status: int, answer: http.client.HTTPResponse) -> Exception:
        if status in _BUSY:
            stated = answer.headers.get("Retry-After", "")
            return _TryAgain(f"answered {status} {answer.reason}", float(stated) if stated.isdecimal() else None)
        if status in _MISSING:
            return missing_shard(self.url, self.host)
        if status == 200:
            return InputError(
                [Problem(what=f"{self.host} gives no ranges", rule="the server supports Range", file=self.url)]
            )
        return OperationError(f"{self.url}: {self.host} answered {status} {answer.reason}")

    def _moved(self, url: str, place: str) -> str:
        target = urljoin(url, place)
        if urlsplit(target).scheme.lower() not in ("http", "https"):
            raise OperationError(f"{self.url}: {self.host} sends to an address that is not HTTP")
        return target

    def _connected(self, key: tuple[str, str], address: Any) -> http.client.HTTPConnection:
        """Return an idle connection to a server, or a new one."""
        held = self._idle.take(key)
        if held is not None:
            return held
        kind = http.client.HTTPSConnection if key[0] == "https" else http.client.HTTPConnection
        try:
            return kind(address.hostname or "", address.port, timeout=self._patience.timeout_seconds)
        except (ValueError, http.client.InvalidURL) as error:
            raise InputError([Problem(what=str(error), rule="http://HOST[:PORT]/PATH", file=self.url)]) from error

    def close(self) -> None:
        """Close the connections. The file may be read again."""
        self._idle.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self._idle.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._idle = _IdleConnections()


class _IdleConnections:
    """Connections that no request uses, by server. A fork closes its copies and begins with none."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._by_server: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}

    def take(self, key: tuple[str, str]) -> http.client.HTTPConnection | None:
        if self._process != os.getpid():
            # The lock may be a copy of one that another thread held.
            self._process, self._lock = os.getpid(), threading.Lock()
            self.close()
        with self._lock:
            held = self._by_server.get(key)
            return held.pop() if held else None

    def put(self, key: tuple[str, str], connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._by_server.setdefault(key, []).append(connection)

    def close(self) -> None:
        dropped, self._by_server = self._by_server, {}
        for connections in dropped.values():
            for connection in connections:
                connection.close()


def _body(answer: http.client.HTTPResponse, length: int, deadline: float) -> bytes:
    """Read a body of at most `length` bytes. A server that gives a byte now and then runs into the deadline."""
    pieces: list[bytes] = []
    missing = length
    while missing > 0 and (piece := answer.read1(min(missing, _PIECE_BYTES))):
        pieces.append(piece)
        missing -= len(piece)
        if missing > 0 and time.monotonic() > deadline:
            raise _TryAgain(f"gave {length - missing} of {length} bytes before the timeout")
    return b"".join(pieces)


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "did not answer before the timeout"
    if isinstance(error, http.client.HTTPException):
        return f"ended its answer early ({type(error).__name__})"
    return f"cannot be reached: {getattr(error, 'strerror', None) or error}"


def host_of(url: str) -> str:
    """Return the host of a URL with its port, or its scheme if it has no host."""
    address = urlsplit(url)
    host = address.netloc.rpartition("@")[2]
    return host or address.scheme


def shown_url(url: str) -> str:
    """Return a URL without user name and query, which may hold secrets."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"


def missing_shard(url: str, host: str) -> InputError:
    """Return the error for a file that a server does not have."""
    return InputError([Problem(what=f"{host} has no such file", rule="a shard is a readable file", file=url)])
