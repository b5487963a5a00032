"""One control connection: frames of JSON, bounded in length, each of four bytes of length and one JSON object."""

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
"""An empty mapping is two bytes of JSON, and many times as much once it is read."""
SEND_SECONDS = 10.0

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 2**18


class ControlError(OperationError):
    """What came over a control connection is not what the protocol has."""


class ClosedError(ControlError):
    """The other side has closed the connection, or is gone."""


class Channel:
    """One connection. Any thread may send; one thread receives. `received` has come over it already."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self._socket = connection
        self._socket.settimeout(SEND_SECONDS)
        self._buffer = bytearray(received)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message whole. Who does not take it within a time counts as gone."""
        data = packed(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ClosedError(f"the other end takes no message: {error}") from error

    def read(self) -> list[dict[str, Any]]:
        """Take what has come, once the socket is readable: the messages that are whole now."""
        # Readable, and yet nothing comes: then there is nothing more for now.
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
        """The whole messages that came together with one that was received."""
        return list(whole_messages(self._buffer, MAX_MESSAGE_BYTES))

    def receive(self, seconds: float, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
        """Wait for one message. One that trickles in has no more time."""
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
        """End the connection; a thread that waits at either end is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as it goes over a connection."""
    try:
        body = json.dumps(message, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ControlError(f"a message that cannot be sent: {error}") from error
    if len(body) > MAX_MESSAGE_BYTES:
        raise ControlError(f"a message of {len(body)} bytes (at most {MAX_MESSAGE_BYTES})")
    return _LENGTH.pack(len(body)) + body


def whole_messages(buffer: bytearray, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Take the messages that are whole from a buffer; ControlError where one is too long, or no JSON object."""
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
