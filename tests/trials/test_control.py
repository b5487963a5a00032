"""The control port: who has the token comes in, once; everybody else is refused, said so, and nothing else happens."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.launchers.control_address import short_name
from autosync.trials import channel, control, peer_user
from autosync.trials import control_listener as gates
from autosync.trials.control import Channel, ClosedError, ControlError, ControlListener, connect

TOKEN = "the right one"


@pytest.fixture(autouse=True)
def _no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is turned away tries again, which tests that turn it away do not want."""
    monkeypatch.setattr(control, "RETRY_SECONDS", 0.0)


@pytest.fixture(params=["loopback", "file"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlListener]:
    if request.param == "loopback":
        made = control.listen_on_loopback(TOKEN, 2)
    else:
        # Longer than the 108 bytes that a socket's name may have.
        folder = tmp_path / ("deep" * 30)
        folder.mkdir()
        made = control.listen_in_folder(folder, TOKEN, 2)
    yield made
    made.close()


def _knock(gate: ControlListener) -> socket.socket:
    """A connection without any of our code on this side."""
    kind, _, place = gate.address.partition(":")
    if kind == "tcp":
        host, _, port = place.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    try:
        with short_name(Path(place)) as name:
            made.connect(name)
    except OSError:
        made.close()
        raise
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


def _still_works(gate: ControlListener) -> None:
    ours = connect(gate.address, TOKEN, 1)
    rank, theirs = gate.admitted.get(timeout=10)
    assert rank == 1
    theirs.send({"id": 1})
    assert ours.receive(10) == {"id": 1}
    ours.close()
    theirs.close()


def test_messages_go_both_ways(gate: ControlListener) -> None:
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
def test_what_is_no_greeting_is_refused(
    sent: bytes, words: str, gate: ControlListener, caplog: pytest.LogCaptureFixture
) -> None:
    with _knock(gate) as client:
        client.sendall(sent)
        assert words in _refusal(caplog)
        assert _is_turned_away(client)
    assert gate.admitted.empty()
    _still_works(gate)


def test_without_a_token_nobody_comes_in(gate: ControlListener, caplog: pytest.LogCaptureFixture) -> None:
    for token in ("", "the wrong one"):
        with pytest.raises(ControlError):
            connect(gate.address, token, 0)
    assert "it does not know the token" in _refusal(caplog)
    assert gate.admitted.empty()
    _still_works(gate)


def test_who_is_slow_is_refused(
    gate: ControlListener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "OUR_SECONDS", 0.3)
    with _knock(gate) as silent, _knock(gate) as dripping:
        while not caplog.messages:
            # The gate may close it just before it tells why.
            with contextlib.suppress(OSError):
                dripping.sendall(b"\0")
            time.sleep(0.1)
        assert "it has not proved anything in time" in _refusal(caplog)
        assert _is_turned_away(silent)
        assert _is_turned_away(dripping)
    monkeypatch.undo()
    _still_works(gate)


def test_a_stranger_has_less_time(gate: ControlListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "uid_of_peer", lambda _: None)
    monkeypatch.setattr(gates, "STRANGERS_SECONDS", 0.3)
    with _knock(gate) as silent:
        silent.settimeout(gates.OUR_SECONDS / 2)
        assert _is_turned_away(silent)


def test_who_leaves_at_the_door_is_no_harm(gate: ControlListener, caplog: pytest.LogCaptureFixture) -> None:
    _knock(gate).close()
    assert "the connection" in _refusal(caplog) or "it takes nothing" in _refusal(caplog)
    _still_works(gate)


def test_another_user_is_turned_away_at_once(
    gate: ControlListener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(gates, "uid_of_peer", lambda _: 54321)
        clients = [_knock(gate) for _ in range(12)]
        assert all(client.recv(1) == b"" for client in clients), "not even a challenge"
    assert "it comes from a process of user 54321" in caplog.messages[0]
    # A crowd does not fill the log.
    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("(10 such so far)")
    for client in clients:
        client.close()
    _still_works(gate)


def test_the_kernel_says_whose_a_connection_is(gate: ControlListener) -> None:
    with _knock(gate) as client:
        client.recv(1)
        (waiting,) = gate._waiting.values()
        assert peer_user.uid_of_peer(waiting.connection) == os.geteuid()
        assert waiting.is_ours


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user's")
def test_a_real_process_of_another_user_is_known_as_one(caplog: pytest.LogCaptureFixture) -> None:
    gate = control.listen_on_loopback(TOKEN, 1)
    host, _, port = gate.address.removeprefix("tcp:").rpartition(":")
    child = os.fork()
    if not child:
        # Nothing but system calls: this is a copy of the process that runs the tests.
        try:
            os.setuid(1001)
            with socket.socket() as client:
                client.settimeout(10)
                client.connect((host, int(port)))
                os._exit(0 if client.recv(1) == b"" else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _refusal(caplog).endswith("it comes from a process of user 1001")
    gate.close()


def _no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel does not say whose a connection is: all are strangers."""
    monkeypatch.setattr(gates, "uid_of_peer", lambda _: None)


def test_of_a_crowd_the_one_that_is_idle_longest_leaves(
    gate: ControlListener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_peers(monkeypatch)
    monkeypatch.setattr(gates, "STRANGERS_SECONDS", 60.0)
    speaking = _knock(gate)
    speaking.sendall(b"\0")
    deadline = time.monotonic() + 10
    while not any(one.buffer for one in list(gate._waiting.values())) and time.monotonic() < deadline:
        time.sleep(0.01)
    idle = [_knock(gate) for _ in range(gates.MAX_WAITING + 2)]
    assert "66 others wait at the gate" in _refusal(caplog)
    assert _is_turned_away(idle[0])
    assert len(gate._waiting) == gates.MAX_WAITING + 2
    # It has said something, and so is not idle.
    speaking.settimeout(0.0)
    speaking.recv(4096)
    with pytest.raises(BlockingIOError):
        speaking.recv(4096)
    _still_works(gate)
    for client in [speaking, *idle]:
        client.close()


def test_a_rank_gets_through_a_crowd(gate: ControlListener, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_peers(monkeypatch)
    monkeypatch.setattr(control, "RETRY_SECONDS", 60.0)
    is_over = threading.Event()

    def crowd() -> None:
        held: list[socket.socket] = []
        while not is_over.is_set():
            # The kernel keeps only so many.
            with contextlib.suppress(OSError):
                held.append(_knock(gate))
            if len(held) > 200:
                held.pop(0).close()
        for one in held:
            one.close()

    knocking = [threading.Thread(target=crowd) for _ in range(3)]
    for thread in knocking:
        thread.start()
    try:
        _still_works(gate)
    finally:
        is_over.set()
        for thread in knocking:
            thread.join()


def test_a_rank_that_is_turned_away_comes_again(gate: ControlListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "RETRY_SECONDS", 60.0)
    real, tries = control.introduce, []

    def late(one: Channel, token: str, rank: int) -> None:
        tries.append(rank)
        if len(tries) < 3:
            raise ControlError("it was closed to make room")
        real(one, token, rank)

    monkeypatch.setattr(control, "introduce", late)
    _still_works(gate)
    assert len(tries) == 3


def test_what_was_overheard_opens_nothing(gate: ControlListener, caplog: pytest.LogCaptureFixture) -> None:
    """A replay: a greeting that was right on one connection is wrong on the next, which has another challenge."""
    overheard: list[bytes] = []
    real = Channel.send

    def send(one: Channel, message: dict[str, object]) -> None:
        overheard.append(channel.packed(message))
        real(one, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "send", send)
        first = connect(gate.address, TOKEN, 0)
    (greeting,) = overheard
    with _knock(gate) as client:
        client.sendall(greeting)
        assert "it does not know the token" in _refusal(caplog)
        assert _is_turned_away(client)
    first.close()


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_there_are_not(rank: int, gate: ControlListener, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ControlError):
        connect(gate.address, TOKEN, rank)
    assert f"rank {rank} is none of ours" in _refusal(caplog)


def test_a_rank_comes_once(gate: ControlListener, caplog: pytest.LogCaptureFixture) -> None:
    first = connect(gate.address, TOKEN, 0)
    with pytest.raises(ControlError):
        connect(gate.address, TOKEN, 0)
    assert "is here already" in _refusal(caplog)
    first.close()


def test_whoever_listens_must_know_the_token_too() -> None:
    ours, theirs = socket.socketpair()
    service = Channel(theirs)
    served = threading.Thread(
        target=lambda: [service.send({"challenge": "c"}), service.receive(10), service.send({"proof": "none"})]
    )
    served.start()

    def pretend(*_: object, **__: object) -> socket.socket:
        return ours

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", pretend)
        with pytest.raises(ControlError, match="does not know the token"):
            connect("tcp:127.0.0.1:1", TOKEN, 0)
    served.join()
    service.close()


def test_a_closed_gate_is_gone(gate: ControlListener) -> None:
    gate.close()
    with pytest.raises(ClosedError, match="no process listens at"):
        connect(gate.address, TOKEN, 0)
    kind, _, path = gate.address.partition(":")
    assert kind == "tcp" or not Path(path).exists()


def test_a_message_that_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_MESSAGE_BYTES", 100)
    ours, theirs = (Channel(one) for one in socket.socketpair())
    with pytest.raises(ControlError, match=r"\(at most 100\)"):
        ours.send({"text": "a" * 100})
    ours._socket.sendall(struct.pack(">I", 101))
    with pytest.raises(ControlError, match=r"a message of 101 bytes \(at most 100\)"):
        theirs.read()
    ours.close()
    theirs.close()


def test_a_message_that_would_be_much_once_it_is_read_is_refused() -> None:
    body = b'{"a": [' + b"{}," * channel.MAX_VALUES + b"0]}"
    buffer = bytearray(len(body).to_bytes(4, "big") + body)
    with pytest.raises(ControlError, match=f"a message of 1000002 values .at most {channel.MAX_VALUES}."):
        list(channel.whole_messages(buffer, len(body)))
