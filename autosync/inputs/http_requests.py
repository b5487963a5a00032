"""Reads ranges of a file from an HTTP server, with retries within a limit.

A server that is overloaded (429, 500, 502, 503, 504), slow, or that ends a connection early is asked again. Any other
answer is an error at once. Each error has the file and the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import random
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from autosync.errors import InputError, OperationError, Problem
from autosync.inputs.http_connections import IDLE, HttpServer

_BUSY = frozenset({429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_MAX_MOVES = 5
_LONGEST_PAUSE_SECONDS = 10.0
_PIECE_BYTES = 2**16
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_KEPT_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"
"""Characters of an address that are sent as they are; others are quoted."""
_BARE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_CONNECTION_ENDED = (ConnectionError, http.client.BadStatusLine, ssl.SSLError)
_CHANCE = random.SystemRandom()
"""Draws of Python's own generator would change the random numbers of the training."""


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
    """A file that an HTTP server gives in ranges."""

    def __init__(self, url: str, patience: Patience) -> None:
        self.url = shown_url(url)
        self.host = host_of(url)
        self._whole_url = url
        self._patience = patience
        # The first byte tells the size: many servers of signed URLs refuse HEAD.
        (_, self._num_bytes, self._mark), _ = self._patiently(0, 1)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def version(self) -> str:
        return f"{self._num_bytes}-{self._mark}"

    @property
    def tells_changes(self) -> bool:
        return bool(self._mark)

    @property
    def identity(self) -> str:
        # The query is not shown, and may say which file it is.
        return f"{hashlib.sha256(self._whole_url.encode()).hexdigest()} {self.version}"

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
                    pause = self._patience.pause_seconds * 2**number * _CHANCE.uniform(0.5, 1.5)
                time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    def _once(self, url: str, start: int, length: int, moves_left: int) -> tuple[bytes, int, str]:
        """Return bytes, the size of the whole file, and its tag."""
        deadline = time.monotonic() + self._patience.timeout_seconds
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        server, connection, answer = self._answer(urlsplit(url), headers)
        status = answer.status
        is_reusable = False
        try:
            if status in (206, 416) or _is_whole(answer, start, length):
                body = _body(answer, length, deadline) if status != 416 else b""
                result = self._understood(answer, body, start, length)
                # A connection with unread bytes would give them to the next request.
                is_reusable = not answer.read(1) and not answer.will_close
                return result
        except (OSError, http.client.HTTPException) as error:
            IDLE.drop(server)
            raise _TryAgain(_in_words(error)) from error
        finally:
            if is_reusable:
                IDLE.put(server, connection)
            else:
                connection.close()
        if status in _MOVED and moves_left and (place := answer.headers.get("Location")):
            return self._once(self._moved(url, place), start, length, moves_left - 1)
        raise self._refusal(status, answer)

    def _answer(
        self, address: SplitResult, headers: Mapping[str, str]
    ) -> tuple[HttpServer, http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return the answer to a request, its body unread, with the connection that it came over.

        Servers end connections that were idle for long. This is no failed try: the request is sent again at once.
        """
        server = self._server(address)
        target = _target(address)
        held = IDLE.take(server)
        try:
            if held is not None:
                # Another file of the server may have put it back, and that may be more patient.
                held.timeout = self._patience.timeout_seconds
                if held.sock is not None:
                    held.sock.settimeout(self._patience.timeout_seconds)
                try:
                    return server, held, _asked(held, target, headers)
                except _CONNECTION_ENDED:
                    # The others have been idle for longer.
                    IDLE.drop(server)
            connection = self._connection(server)
            return server, connection, _asked(connection, target, headers)
        except (OSError, http.client.HTTPException) as error:
            # What ended this connection in silence has ended the others, and each would take a try and its timeout.
            IDLE.drop(server)
            raise _TryAgain(_in_words(error)) from error

    def _understood(
        self, answer: http.client.HTTPResponse, body: bytes, start: int, length: int
    ) -> tuple[bytes, int, str]:
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if answer.status == 200:
            if len(body) != length:
                raise _TryAgain(f"gave {len(body)} of {length} bytes")
            return body, length, mark
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
        return body, num_bytes, mark

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
        # Header fields come as Latin-1, and addresses are UTF-8.
        with contextlib.suppress(UnicodeError):
            place = place.encode("latin-1").decode()
        target = urljoin(url, place)
        if urlsplit(target).scheme.lower() not in ("http", "https"):
            raise OperationError(f"{self.url}: {self.host} sends to an address that is not HTTP")
        return target

    def _server(self, address: SplitResult) -> HttpServer:
        try:
            return HttpServer(address.scheme.lower(), address.hostname or "", address.port)
        except ValueError as error:
            raise self._no_address(str(error)) from error

    def _connection(self, server: HttpServer) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
        try:
            return kind(server.host, server.port, timeout=self._patience.timeout_seconds)
        except http.client.InvalidURL as error:
            raise self._no_address(str(error)) from error

    def _no_address(self, what: str) -> InputError:
        return InputError([Problem(what=what, rule="http://HOST[:PORT]/PATH", file=self.url)])


def _target(address: SplitResult) -> str:
    """Return what a request asks a server for. People and servers write addresses with spaces and other letters."""
    target = (address.path or "/") + (f"?{address.query}" if address.query else "")
    return _BARE_PERCENT.sub("%25", quote(target, safe=_KEPT_CHARACTERS))


def _asked(connection: http.client.HTTPConnection, target: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """Send a request and return the answer, its body unread. After an error the connection is closed."""
    try:
        connection.request("GET", target, headers=dict(headers))
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise


def _is_whole(answer: http.client.HTTPResponse, start: int, length: int) -> bool:
    """Whether a server gives a whole file as such, because the range that was asked for is the whole file."""
    return answer.status == 200 and start == 0 and answer.length == length


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
