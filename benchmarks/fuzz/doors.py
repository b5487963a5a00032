"""Input to control connections: at a trial service's gate, to the service, and to a rank.

Each input is bytes or messages from one side; the other side is the one that autosync runs. It must end in a value or
in an error. Its threads must survive, and messages of others must be handled as usual.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import resource
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers.control_address import connection_to
from autosync.trials import control
from autosync.trials.handshake import introduce
from autosync.trials.rank_requests import RequestLoop
from benchmarks.fuzz.agents import LENGTHS, SECONDS, check_children
from benchmarks.fuzz.kinds import Attempt, Failure, Maker
from tests.helpers.damaged_files import damaged, hostile_json

TOKEN = "0123456789abcdef" * 4
_BULK_BYTES = 15 * 2**20


# Control connections.


def _messages(rng: random.Random, good: Sequence[dict[str, Any]]) -> bytes:
    """Return frames of control messages: mutated, damaged, with wrong lengths, or with very much in one."""
    sent = b""
    for message in good:
        body = hostile_json(message, rng) if rng.random() < 0.6 else json.dumps(message).encode()
        if rng.random() < 0.02:
            item = rng.choice((b"[],", b"{},", b"0,", b'"",', b"[" * 50 + b"]" * 50 + b","))
            body = b'{"id": 1, "result": [' + item * (_BULK_BYTES // len(item)) + b"0]}"
        length = len(body) if rng.random() < 0.9 else rng.choice((*LENGTHS, len(body) - 1, len(body) + 1))
        sent += struct.pack(">I", max(0, length) & 0xFFFFFFFF) + body
    return damaged(sent, rng) if rng.random() < 0.2 else sent


_GREETINGS = (
    {"rank": 0, "nonce": "0" * 32, "proof": "0" * 64},
    {"rank": 1, "nonce": "é" * 16, "proof": "\ud800"},
    {"challenge": "0" * 32},
    {"proof": "0" * 64},
)
_ANSWERS = (
    {"id": 1, "result": {"step_seconds": [0.1], "bytes_sent": [1]}},
    {"id": 1, "error": {"kind": "raised", "message": "no"}},
    {"id": 1, "doing": "in prepare"},
)
_REQUESTS = ({"id": 1, "request": "echo", "value": 1}, {"id": 2, "request": "where"}, {"id": 3, "request": "fails"})


def gates(_kind: str, originals: Path) -> Maker:
    """Return a maker of a stranger's messages at a trial service's gate, through which a rank must still come."""
    del originals

    def make(rng: random.Random, box: Path) -> Attempt:
        said = [_messages(rng, rng.sample(_GREETINGS, rng.choice((0, 1, 1, 2)))) for _ in range(rng.choice((1, 1, 3)))]
        is_patient = rng.random() < 0.3
        return lambda: _through_the_gate(box, said, is_patient=is_patient)

    return make


def _through_the_gate(box: Path, said: Sequence[bytes], *, is_patient: bool) -> str:
    """Let strangers connect and send messages, some of whom stay connected; then let a rank come."""
    gate = control.listen_in_folder(box, TOKEN, 2)
    strangers = []
    try:
        for one in said:
            stranger = connection_to(gate.address)
            strangers.append(stranger)
            with contextlib.suppress(OSError):
                stranger.settimeout(1.0)
                stranger.sendall(one)
            if not is_patient:
                stranger.close()
        channel = control.connect(gate.address, TOKEN, 1)
        rank, theirs = gate.admitted.get(timeout=SECONDS)
        channel.send({"id": 1, "result": None})
        if rank != 1 or theirs.receive(SECONDS) != {"id": 1, "result": None}:
            raise Failure(f"rank 1 came, and {rank} was let in")
        channel.close()
        theirs.close()
        if not gate.admitted.empty():
            raise Failure("a stranger was let in")
    finally:
        for stranger in strangers:
            stranger.close()
        gate.close()
    return "refused"


def channels(_kind: str, originals: Path) -> Maker:
    """Return a maker of a rank's messages to its service, and of a service's messages to a rank that greets."""
    del originals

    def make(rng: random.Random, box: Path) -> Attempt:
        del box
        if rng.random() < 0.5:
            sent = _messages(rng, rng.sample(_ANSWERS, rng.choice((1, 2, 3))))
            return lambda: _between(sent, _read_all)
        sent = _messages(rng, rng.sample(_GREETINGS, 2))
        return lambda: _between(sent, lambda channel: introduce(channel, TOKEN, 0))

    return make


def _between(sent: bytes, reads: Any) -> str:
    """Let one side send and close, and the other side read."""
    here, there = socket.socketpair()
    channel = control.Channel(here)

    def send() -> None:
        with contextlib.suppress(OSError):
            there.settimeout(SECONDS)
            there.sendall(sent)
            there.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        reads(channel)
    finally:
        channel.close()
        sender.join()
        there.close()
    return "taken"


def _read_all(channel: control.Channel) -> None:
    while True:
        for message in channel.read():
            if not isinstance(message, dict):
                raise Failure(f"a message is a {type(message).__name__}")


class _Echo:
    """A rank's handler of requests, which echoes its input or fails."""

    doing = "waiting"

    @property
    def requests(self) -> dict[str, Any]:
        return {"echo": lambda request: {"value": request.get("value")}, "fails": self._fail}

    def where(self) -> str:
        return self.doing

    def idle_seconds(self) -> None:
        """Tell of no steps."""

    def _fail(self, _request: object) -> dict[str, Any]:
        raise OperationError("it fails")


def conversations(_kind: str, originals: Path) -> Maker:
    """Return a maker of a service's requests to a rank, whose process must answer or end, and never hang."""
    del originals

    def make(rng: random.Random, box: Path) -> Attempt:
        asked = [dict(one) for one in rng.choices(_REQUESTS, k=rng.choice((1, 2, 3)))]
        sent = _messages(rng, asked)
        return lambda: _asked(box, sent)

    return make


def _asked(box: Path, sent: bytes) -> str:
    """Send requests to a rank in a child process, which must end when the connection does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        _be_rank(there, here, box / "log")
    there.close()
    with contextlib.suppress(OSError):
        here.settimeout(SECONDS)
        here.sendall(sent)
        here.shutdown(socket.SHUT_WR)
    code = _ended(child)
    here.close()
    said = (box / "log").read_text(encoding="utf-8", errors="replace")
    if code != 1 or "Exception in thread" in said:
        raise Failure(f"the rank ended with {code}: {said[-800:]}")
    check_children(before)
    return "taken"


def _ended(child: int) -> int | None:
    """Return how a child ended; kill it if it does not end."""
    deadline = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=SECONDS)
    while dt.datetime.now(tz=dt.UTC) < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


def _be_rank(connection: socket.socket, others: socket.socket, log: Path) -> None:
    """In the child: handle the requests, and write errors to a log."""
    others.close()
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    threading.excepthook = threading.__excepthook__
    try:
        conversation = RequestLoop(control.Channel(connection), lambda _tell: _Echo())
        threading.Thread(target=conversation.listen, daemon=True).start()
        conversation.serve()
    except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it is
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}".encode())
        # The connection may close before an answer is sent, which is an ordinary end.
        os._exit(1 if isinstance(error, OperationError) else 3)
