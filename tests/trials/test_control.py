"""The control port: who has the token comes in, once; everybody else is refused, said so, and nothing else happens."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.launchers.address import short_name
from autosync.trials import control
from autosync.trials.control import Channel, ClosedError, ControlError, Gate, connect

TOKEN = "the right one"


@pytest.fixture(params=["loopback", "file"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Gate]:
    if request.param == "loopback":
        made = control.listen_on_loopback(TOKEN, 2)
    else:
        # Longer than the 108 bytes that a socket's name may have.
        folder = tmp_path / ("deep" * 30)
        folder.mkdir()
        made = control.listen_in_folder(folder, TOKEN, 2)
    yield made
    made.close()


def _knock(gate: Gate) -> socket.socket:
    """A connection without any of our code on this side."""
    kind, _, place = gate.address.partition(":")
    if kind == "tcp":
        host, _, port = place.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    with short_name(Path(place)) as name:
        made.connect(name)
    return made


def _is_turned_away(client: socket.socket) -> bool:
    """Whether the other side closes the connection, after its challenge."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        return True
    return True


def _refusal(caplog: pytest.LogCaptureFixture) -> str:
    deadline = time.monotonic() + 10
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    return caplog.messages[-1]


def _still_works(gate: Gate) -> None:
    ours = connect(gate.address, TOKEN, 1)
    rank, theirs = gate.admitted.get(timeout=10)
    assert rank == 1
    theirs.send({"id": 1})
    assert ours.receive(10) == {"id": 1}
    ours.close()
    theirs.close()


def test_messages_go_both_ways(gate: Gate) -> None:
    ours = connect(gate.address, TOKEN, 0)
    rank, theirs = gate.admitted.get(timeout=10)
    assert rank == 0
    large = {"text": "ä" * 1_000_000}
    sender = threading.Thread(target=lambda: [theirs.send(large), theirs.send({"n": 2})])
    sender.start()
    assert ours.receive(10) == large
    assert ours.receive(10) == {"n": 2}
    sender.join()
    theirs.close()
    with pytest.raises(ClosedError):
        ours.receive(10)
    ours.close()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (struct.pack(">I", 2) + b"{}", "no rank, nonce and proof"),
        (struct.pack(">I", 2) + b"[]", "a message is a JSON object"),
        (struct.pack(">I", 5) + b"\xff{{{{", "no JSON"),
        (struct.pack(">I", 60) + b"[" * 60, "no JSON"),
        (struct.pack(">I", 1025), "a message of 1025 bytes (at most 1024)"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes (at most 1024)"),
        (struct.pack(">I", 46) + b'{"rank": true, "nonce": "", "proof": "012345"}', "no rank, nonce and proof"),
        (struct.pack(">I", 43) + b'{"rank": 0, "nonce": "", "proof": "012345"}', "it does not know the token"),
    ],
)
def test_what_is_no_greeting_is_refused(sent: bytes, words: str, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with _knock(gate) as client:
        client.sendall(sent)
        assert words in _refusal(caplog)
        assert _is_turned_away(client)
    assert gate.admitted.empty()
    _still_works(gate)


def test_without_a_token_nobody_comes_in(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    for token in ("", "the wrong one"):
        with pytest.raises(ControlError):
            connect(gate.address, token, 0)
    assert "it does not know the token" in _refusal(caplog)
    assert gate.admitted.empty()
    _still_works(gate)


def test_who_is_slow_is_refused(gate: Gate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "GREETING_SECONDS", 0.3)
    with _knock(gate) as silent, _knock(gate) as dripping:
        while not caplog.messages:
            dripping.sendall(b"\0")
            time.sleep(0.1)
        assert _refusal(caplog).startswith("refused a control connection: ")
        assert _is_turned_away(silent)
    monkeypatch.undo()
    _still_works(gate)


def test_who_leaves_at_the_door_is_no_harm(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    _knock(gate).close()
    assert "the connection" in _refusal(caplog) or "nobody takes" in _refusal(caplog)
    _still_works(gate)


def test_a_crowd_at_the_door_is_turned_away(
    gate: Gate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [_knock(gate) for _ in range(control.MAX_GREETED + 1)]
    assert "at the door already" in _refusal(caplog)
    for client in clients:
        client.close()
    deadline = time.monotonic() + 10
    while len(caplog.messages) < len(clients) and time.monotonic() < deadline:
        time.sleep(0.01)
    _still_works(gate)


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_there_are_not(rank: int, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ControlError):
        connect(gate.address, TOKEN, rank)
    assert f"rank {rank} is none of ours" in _refusal(caplog)


def test_a_rank_comes_once(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    first = connect(gate.address, TOKEN, 0)
    with pytest.raises(ControlError):
        connect(gate.address, TOKEN, 0)
    assert "is here already" in _refusal(caplog)
    first.close()


def test_whoever_listens_must_know_the_token_too() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    served = threading.Thread(
        target=lambda: [channel.send({"challenge": "c"}), channel.receive(10), channel.send({"proof": "none"})]
    )
    served.start()

    def pretend(*_: object, **__: object) -> socket.socket:
        return ours

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", pretend)
        with pytest.raises(ControlError, match="does not know the token"):
            connect("tcp:127.0.0.1:1", TOKEN, 0)
    served.join()
    channel.close()


def test_a_closed_gate_is_gone(gate: Gate) -> None:
    gate.close()
    with pytest.raises(ClosedError, match="nobody listens at"):
        connect(gate.address, TOKEN, 0)
    kind, _, path = gate.address.partition(":")
    assert kind == "tcp" or not Path(path).exists()


def test_a_message_that_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_MESSAGE_BYTES", 100)
    ours, theirs = (Channel(one) for one in socket.socketpair())
    with pytest.raises(ControlError, match=r"\(at most 100\)"):
        ours.send({"text": "a" * 100})
    ours._socket.sendall(struct.pack(">I", 101))
    with pytest.raises(ControlError, match=r"a message of 101 bytes \(at most 100\)"):
        theirs.read()
    ours.close()
    theirs.close()
