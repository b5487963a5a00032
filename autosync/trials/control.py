"""The control channel between a trial service and its ranks: framed JSON, authenticated both ways.

A frame is four bytes of length and as many bytes of one JSON object. Whoever connects must prove that it knows the
token of this launch, which ranks find in their environment, and so must we: neither side ever sends the token. What is
too large, no JSON, late or without the token is refused, said in the log, and the connection is closed.

An address is `tcp:HOST:PORT`, or `unix:PATH` for ranks in network namespaces of this machine, or `relayed` where the
launcher carries what ranks elsewhere say to a gate here; see `launchers.address`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers.address import connection_to, short_name

TOKEN_VARIABLE = "AUTOSYNC_CONTROL_TOKEN"  # noqa: S105 - the variable's name, not a token
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_GREETING_BYTES = 1024
"""The most that anybody may send who has not proved anything yet."""
GREETING_SECONDS = 5.0
SEND_SECONDS = 10.0
MAX_GREETED = 64
"""How many may be at the door at once; more are turned away."""

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 2**18
_LOG = logging.getLogger(__name__)


class ControlError(OperationError):
    """What came over a control connection is not what the protocol has."""


class ClosedError(ControlError):
    """The other side has closed the connection, or is gone."""


class Channel:
    """One connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(SEND_SECONDS)
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message whole. Who does not take it within a time counts as gone."""
        body = json.dumps(message, allow_nan=False).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise ControlError(f"a message of {len(body)} bytes (at most {MAX_MESSAGE_BYTES})")
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ClosedError(f"nobody takes the message: {error}") from error

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

    def _whole_messages(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > max_bytes:
                raise ControlError(f"a message of {length} bytes (at most {max_bytes})")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield _parse(body)

    def held(self) -> list[dict[str, Any]]:
        """The whole messages that came together with one that was received."""
        return list(self._whole_messages(MAX_MESSAGE_BYTES))

    def receive(self, seconds: float, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
        """Wait for one message. One that trickles in has no more time."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                message = next(self._whole_messages(max_bytes), None)
                if message is not None:
                    return message
                self._fill(before=deadline)
        except TimeoutError as error:
            raise ControlError(f"no whole message within {seconds:g} s") from error
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(SEND_SECONDS)

    def close(self) -> None:
        """End the connection; whoever waits at either end is told."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"no JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise ControlError("a message is a JSON object")
    return message


class Gate:
    """Where ranks connect: admits those with the token, each rank once, and turns everybody else away."""

    def __init__(self, listener: socket.socket, address: str, *, token: str, num_ranks: int) -> None:
        self.address = address
        self.admitted: queue.SimpleQueue[tuple[int, Channel]] = queue.SimpleQueue()
        self._listener = listener
        self._token = token
        self._num_ranks = num_ranks
        self._known: set[int] = set()
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_GREETED)
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="autosync-gate", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    # Out of file descriptors, say: whoever waits for ranks has a limit.
                    _LOG.warning("the control port cannot accept: %s", error)
                    time.sleep(0.1)
                continue
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), name="autosync-greeter", daemon=True).start()
            else:
                _LOG.warning("refused a control connection: %d are at the door already", MAX_GREETED)
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        try:
            rank = self._check(channel)
        except ControlError as error:
            _LOG.warning("refused a control connection: %s", error)
            channel.close()
        else:
            with self._lock:
                if self._closed:
                    channel.close()
                else:
                    self.admitted.put((rank, channel))
        finally:
            self._places.release()

    def _check(self, channel: Channel) -> int:
        challenge = secrets.token_hex(16)
        channel.send({"challenge": challenge})
        reply = channel.receive(GREETING_SECONDS, MAX_GREETING_BYTES)
        rank, nonce, proof = reply.get("rank"), reply.get("nonce"), reply.get("proof")
        if type(rank) is not int or not isinstance(nonce, str) or not isinstance(proof, str):
            raise ControlError("no rank, nonce and proof")
        if not _is_same(_proof(self._token, "rank", rank, challenge, nonce), proof):
            raise ControlError("it does not know the token")
        with self._lock:
            if not 0 <= rank < self._num_ranks or rank in self._known:
                raise ControlError(f"rank {rank} is none of ours, or is here already")
            self._known.add(rank)
        channel.send({"proof": _proof(self._token, "service", rank, nonce, challenge)})
        return rank

    def close(self) -> None:
        """Let nobody in any more. Who was admitted stays, but for those whom nobody has fetched."""
        with self._lock:
            self._closed = True
        while not self.admitted.empty():
            self.admitted.get()[1].close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(GREETING_SECONDS)
        kind, _, path = self.address.partition(":")
        if kind == "unix":
            Path(path).unlink(missing_ok=True)


def listen_on_loopback(token: str, num_ranks: int) -> Gate:
    """A gate at a free port of this machine's loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(num_ranks + MAX_GREETED)
    except OSError:
        listener.close()
        raise
    return Gate(listener, f"tcp:127.0.0.1:{listener.getsockname()[1]}", token=token, num_ranks=num_ranks)


def listen_in_folder(folder: Path, token: str, num_ranks: int) -> Gate:
    """A gate at a socket file in a folder, for this user alone."""
    path = folder.resolve() / "control"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(num_ranks + MAX_GREETED)
    except OSError:
        listener.close()
        raise
    return Gate(listener, f"unix:{path}", token=token, num_ranks=num_ranks)


def connect(address: str, token: str, rank: int) -> Channel:
    """A rank's connection to its service, once each has proved to the other that it knows the token."""
    try:
        channel = Channel(connection_to(address))
    except OSError as error:
        raise ClosedError(f"nobody listens at {address}: {error}") from error
    try:
        _introduce(channel, token, rank)
    except BaseException:
        channel.close()
        raise
    return channel


def _introduce(channel: Channel, token: str, rank: int) -> None:
    challenge, nonce = str(channel.receive(GREETING_SECONDS).get("challenge")), secrets.token_hex(16)
    channel.send({"rank": rank, "nonce": nonce, "proof": _proof(token, "rank", rank, challenge, nonce)})
    if not _is_same(_proof(token, "service", rank, nonce, challenge), channel.receive(GREETING_SECONDS).get("proof")):
        raise ControlError("whoever listens there does not know the token")


def _is_same(right: str, given: object) -> bool:
    """Whether a proof is right; how long that takes says nothing about where it is not."""
    return isinstance(given, str) and hmac.compare_digest(right.encode(), given.encode("utf-8", "replace"))


def _proof(token: str, *words: object) -> str:
    return hmac.new(token.encode(), json.dumps(words).encode(), hashlib.sha256).hexdigest()
