"""One control connection: bounded messages, each of four bytes of length and one JSON object."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from autosync.errors import OperationError

MAX_MESSAGE_BYTES = 16 * 2**20
MAX_VALUES = 500_000
"""The most values of a message: an empty mapping is two bytes of JSON, but takes far more memory when it is parsed."""
SEND_SECONDS = 10.0

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 2**18


class ControlError(OperationError):
    """A message over a control connection broke the protocol."""


class ClosedError(ControlError):
    """The other side has closed the connection or is gone."""


class Channel:
    """One connection. Any thread may send; only one thread receives. `received` are bytes that were already read."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self._socket = connection
        self._socket.settimeout(SEND_SECONDS)
        self._buffer = bytearray(received)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a whole message; raise ClosedError if the other side does not take it within SEND_SECONDS."""
        data = packed(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ClosedError(f"the other end takes no message: {error}") from error

    def read(self) -> list[dict[str, Any]]:
        """Read the socket once it is readable, and return the messages that are complete now."""
        # A socket that is readable may still have no data: then there is none for now.
        with contextlib.suppress(TimeoutError):
            self._fill()
        return self.held()

    def _fill(self, *, before: float | None = None) -> None:
        if before is not None:
            remaining = before - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
        try:
            chunk = self._socket.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise ClosedError(f"the connection is gone: {error}") from error
        if not chunk:
            raise ClosedError("the connection was closed")
        self._buffer += chunk

    def held(self) -> list[dict[str, Any]]:
        """Return the complete messages that arrived together with an earlier one."""
        return list(whole_messages(self._buffer, MAX_MESSAGE_BYTES))

    def receive(self, seconds: float, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
        """Wait for one message; raise ControlError unless it is complete within `seconds`, even if parts arrive."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                message = next(whole_messages(self._buffer, max_bytes), None)
                if message is not None:
                    return message
                self._fill(before=deadline)
        except TimeoutError as error:
            raise ControlError(f"no whole message within {seconds:g} s") from error
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(SEND_SECONDS)

    def close(self) -> None:
        """End the connection; this wakes threads that wait at either end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def packed(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message."""
    try:
        body = json.dumps(message, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ControlError(f"a message that cannot be sent: {error}") from error
    if len(body) > MAX_MESSAGE_BYTES:
        raise ControlError(f"a message of {len(body)} bytes (at most {MAX_MESSAGE_BYTES})")
    return _LENGTH.pack(len(body)) + body


def whole_messages(buffer: bytearray, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Take the complete messages out of a buffer; raise ControlError if one is too long or no JSON object."""
    while len(buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer)
        if length > max_bytes:
            raise ControlError(f"a message of {length} bytes (at most {max_bytes})")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return
        body = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        yield _parse(body)


def _parse(body: bytes) -> dict[str, Any]:
    num_values = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if num_values > MAX_VALUES:
        raise ControlError(f"a message of {num_values} values (at most {MAX_VALUES})")
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"no JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise ControlError("a message is a JSON object")
    return message
