"""The listener, or gate, at which ranks connect to their service: it admits each rank that knows the token once.

Other processes may connect too: if the address is a port, any process of this machine can. They must not keep a rank
out. So one thread attends to all waiting connections, and

- a connection of another user's process is closed at once, if the kernel tells its user (`peer_user`);
- a connection that does not greet in time is closed, and sooner if the kernel does not tell that it is this user's;
- the number of waiting connections is limited: one too many closes the one that waited longest, strangers first;
- a rank that was refused by mistake tries again (`control.connect`);
- the gate is closed once all ranks are admitted.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from autosync.signatures import draw_number
from autosync.trials import handshake
from autosync.trials.channel import Channel, ClosedError, ControlError, packed, whole_messages
from autosync.trials.peer_user import is_ours, uid_of_peer

STRANGERS_SECONDS = 2.0
"""The time that a connection has to greet if the kernel does not tell that it is this user's."""
OUR_SECONDS = 30.0
"""The time that a connection of this user has to greet: many ranks may start on few cores, or far away."""
MAX_WAITING = 64
"""The number of connections that may wait at the gate, in addition to the number of ranks."""
BACKLOG = 4096
"""The number of connections that the kernel may keep until they are accepted."""

_ACCEPTED_AT_ONCE = 64
_TURN_SECONDS = 0.1
_JOIN_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class _Waiting:
    """A connection that has proved nothing yet."""

    def __init__(self, connection: socket.socket, *, is_ours: bool) -> None:
        connection.settimeout(0.0)
        self.connection = connection
        self.is_ours = is_ours
        self.since = time.monotonic()
        self.challenge = draw_number()
        self.buffer = bytearray()

    @property
    def right_to_stay(self) -> tuple[bool, bool, float]:
        """The sort key for closing connections, lowest first: strangers, then silent connections, then the oldest."""
        return self.is_ours, bool(self.buffer), self.since

    def is_late(self, now: float) -> bool:
        return now - self.since > (OUR_SECONDS if self.is_ours else STRANGERS_SECONDS)


class ControlListener:
    """Accepts the connections of ranks. `admitted` gets each rank that has proved its knowledge of the token."""

    def __init__(self, listener: socket.socket, address: str, *, token: str, num_ranks: int) -> None:
        self.address = address
        self.admitted: queue.SimpleQueue[tuple[int, Channel]] = queue.SimpleQueue()
        self._listener = listener
        self._listener.settimeout(0.0)
        self._token = token
        self._num_ranks = num_ranks
        self._known: set[int] = set()
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: dict[int, _Waiting] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._attend, name="autosync-gate", daemon=True)
        self._thread.start()

    def _attend(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._closed:
                for key, _ in self._selector.select(_TURN_SECONDS):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif (waiting := self._waiting.get(key.fd)) is not None:
                        self._hear(waiting)
                now = time.monotonic()
                for waiting in [one for one in self._waiting.values() if one.is_late(now)]:
                    self._refuse(waiting, "it has not proved anything in time")
        finally:
            for waiting in list(self._waiting.values()):
                self._forget(waiting)
                waiting.connection.close()
            self._selector.close()

    def _accept(self) -> None:
        """Accept connections from the kernel, but not so many at once that others have to wait long."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._closed:
                    # Perhaps there are no file descriptors left: close an idle connection.
                    self._note(f"the control port cannot accept: {error}")
                    self._make_room(0)
                    time.sleep(_TURN_SECONDS)
                return
            self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        uid = uid_of_peer(connection)
        if uid is not None and not is_ours(uid):
            self._note(f"refused a control connection: it comes from a process of user {uid}")
            connection.close()
            return
        waiting = _Waiting(connection, is_ours=uid is not None)
        self._waiting[connection.fileno()] = waiting
        self._selector.register(connection, selectors.EVENT_READ)
        self._make_room(self._num_ranks + MAX_WAITING)
        if connection.fileno() in self._waiting:
            self._say(waiting, {"challenge": waiting.challenge})

    def _make_room(self, places: int) -> None:
        if len(self._waiting) > places:
            leaving = min(self._waiting.values(), key=lambda one: one.right_to_stay)
            self._refuse(leaving, f"{places} others wait at the gate")

    def _say(self, waiting: _Waiting, message: dict[str, str]) -> bool:
        """Send a short message, which the buffer of a new connection can hold; return whether it was sent."""
        data = packed(message)
        try:
            is_sent = waiting.connection.send(data) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            self._refuse(waiting, "it takes nothing")
        return is_sent

    def _hear(self, waiting: _Waiting) -> None:
        try:
            data = waiting.connection.recv(handshake.MAX_GREETING_BYTES + 4 - len(waiting.buffer))
            if not data:
                raise ClosedError("the connection was closed")
            waiting.buffer += data
            greeting = next(whole_messages(waiting.buffer, handshake.MAX_GREETING_BYTES), None)
            if greeting is not None:
                self._admit(waiting, greeting)
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(waiting, f"the connection is gone: {error}")
        except ControlError as error:
            self._refuse(waiting, str(error))

    def _admit(self, waiting: _Waiting, greeting: dict[str, object]) -> None:
        rank, answer = handshake.rank_of(greeting, self._token, waiting.challenge)
        if not 0 <= rank < self._num_ranks or rank in self._known:
            raise ControlError(f"rank {rank} is none of ours, or is here already")
        if not self._say(waiting, answer):
            return
        self._known.add(rank)
        self._forget(waiting)
        channel = Channel(waiting.connection, bytes(waiting.buffer))
        with self._lock:
            if self._closed:
                channel.close()
            else:
                self.admitted.put((rank, channel))

    def _refuse(self, waiting: _Waiting, why: str) -> None:
        self._note(f"refused a control connection: {why}")
        self._forget(waiting)
        with contextlib.suppress(OSError):
            waiting.connection.shutdown(socket.SHUT_RDWR)
        waiting.connection.close()

    def _forget(self, waiting: _Waiting) -> None:
        self._selector.unregister(waiting.connection)
        del self._waiting[waiting.connection.fileno()]

    def _note(self, words: str) -> None:
        """Log a warning, but only for the first, tenth, hundredth … of each kind, so that many do not fill the log."""
        self._refused[words] += 1
        count = self._refused[words]
        if str(count).strip("0") == "1":
            _LOG.warning("%s%s", words, f" ({count} such so far)" if count > 1 else "")

    def close(self) -> None:
        """Admit no more connections. Admitted connections stay open, except those still in `admitted`."""
        with self._lock:
            self._closed = True
        while not self.admitted.empty():
            self.admitted.get()[1].close()
        with contextlib.suppress(OSError):
            self._wake.send(b"!")
        self._thread.join(_JOIN_SECONDS)
        for end in (self._listener, self._wake, self._woken):
            end.close()
        kind, _, path = self.address.partition(":")
        if kind == "unix":
            Path(path).unlink(missing_ok=True)
