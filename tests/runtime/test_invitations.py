"""How servers and workers find each other in a store that others write to: what is not sealed is waited over."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from autosync.errors import InputError, OperationError
from autosync.signatures import SECRET_VARIABLE, sign_letter

dist = pytest.importorskip("torch.distributed")

from autosync.runtime.serving import invitations  # noqa: E402
from autosync.runtime.serving.invitations import Invitation, await_invitation, invite  # noqa: E402
from autosync.runtime.serving.sealed_letters import Letters, shared_secret  # noqa: E402

SECRET = "a secret of both sides"
NUMBER, OTHER = "0" * 32, "1" * 32
PATIENCE = dt.timedelta(seconds=90)
INVITATION = Invitation(session="autosync/0/0,1/0", rank=2, checks=True, trace=None, number=NUMBER)


class Free:
    """A server that waits in a thread of its own."""

    def __init__(self, store: Any, *, secret: str = SECRET, has_values: bool = False, rank: int = 2) -> None:
        self.invitation: Invitation | None = None
        self.error: Exception | None = None

        def wait() -> None:
            try:
                self.invitation = await_invitation(
                    store, "s0", rank=rank, secret=secret, has_values=has_values, patience=PATIENCE
                )
            except OperationError as error:
                self.error = error

        self._thread = threading.Thread(target=wait)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def got(self) -> Invitation | None:
        self._thread.join(100)
        assert not self._thread.is_alive()
        return self.invitation


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _door(store: Any, secret: str = SECRET) -> Any:
    return invitations._door(store, "s0", secret)


@pytest.mark.parametrize("secret", [SECRET, ""])
def test_they_find_each_other(secret: str) -> None:
    store = dist.HashStore()
    server = Free(store, secret=secret, has_values=True)
    assert invite(store, "s0", INVITATION, secret=secret, patience=PATIENCE)
    assert server.got() == INVITATION


@pytest.mark.parametrize(
    "junk",
    [
        b"not json",
        b"",
        b"[" * 100_000,
        json.dumps({"session": "x", "rank": 2, "checks": True, "trace": "/tmp/x", "extra": 1}).encode(),
        json.dumps({"content": "{}", "signature": "0" * 64}).encode(),
        json.dumps({"content": 1, "signature": None}).encode(),
        sign_letter({"server": OTHER, "has_values": True}, "another secret than theirs", "server", "s0", "free"),
    ],
)
def test_junk_in_the_store_is_waited_over(junk: bytes) -> None:
    store, is_over = dist.HashStore(), threading.Event()
    door = _door(store)
    letters = Letters(door, SECRET, "server", "s0")

    def outsider() -> None:
        """Damages all it sees, time after time."""
        seen = {"free"}
        while not is_over.is_set():
            notice = letters.read("free")
            seen |= set() if notice is None else {f"{notice['server']}/invitation"}
            for key in seen:
                door.set(key, junk)
            time.sleep(0.03)

    thread = threading.Thread(target=outsider)
    thread.start()
    server = Free(store)
    time.sleep(0.3)
    assert server.is_waiting
    is_over.set()
    thread.join()
    assert not invite(store, "s0", INVITATION, secret=SECRET, patience=PATIENCE)
    assert server.got() == INVITATION


def test_a_letter_of_an_earlier_training_invites_no_one() -> None:
    """A replay: all that was sealed for one server is put where the next one looks."""
    store = dist.HashStore()
    kept: dict[str, bytes] = {}

    class Overheard:
        """The store as a worker's, whose letters an outsider keeps."""

        def set(self, key: str, value: bytes) -> None:
            kept[key] = value
            door.set(key, value)

        def compare_set(self, *words: str) -> bytes:
            return bytes(door.compare_set(*words))

    door = _door(store)
    with pytest.MonkeyPatch.context() as patch:
        first = Free(store)
        _until(lambda: Letters(door, SECRET, "server", "s0").read("free"))
        patch.setattr(invitations, "_door", lambda *_: Overheard())
        invite(store, "s0", INVITATION, secret=SECRET, patience=PATIENCE)
        assert first.got() == INVITATION
    second = Free(store)
    letters = Letters(door, SECRET, "server", "s0")
    _until(lambda: letters.read("free"))
    notice = letters.read("free")
    assert notice is not None
    for key, value in kept.items():
        door.set(f"{notice['server']}/{key.rpartition('/')[2]}", value)
    time.sleep(0.3)
    assert second.is_waiting
    invite(store, "s0", INVITATION, secret=SECRET, patience=PATIENCE)
    assert second.got() == INVITATION


def test_a_server_that_is_gone_holds_no_one_up() -> None:
    store = dist.HashStore()
    server = Free(store)
    letters = Letters(_door(store), SECRET, "server", "s0")
    _until(lambda: letters.read("free"))
    # What a killed process has left: right, and no one is behind it.
    letters.put("free", {"server": OTHER, "has_values": True})
    assert not invite(store, "s0", INVITATION, secret=SECRET, patience=PATIENCE)
    assert server.got() == INVITATION


def test_of_two_servers_at_a_node_each_serves_one_training() -> None:
    store = dist.HashStore()
    servers = [Free(store), Free(store)]
    for number in (NUMBER, OTHER):
        invitation = Invitation(session=f"autosync/0/0,1/{number[0]}", rank=2, checks=True, trace=None, number=number)
        invite(store, "s0", invitation, secret=SECRET, patience=PATIENCE)
    numbers = [got.number for server in servers if (got := server.got()) is not None]
    assert sorted(numbers) == [NUMBER, OTHER]


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ("another secret than ours", SECRET, "one with another AUTOSYNC_SECRET than this rank's, or with --open"),
        (SECRET, "", "a server with a secret is not to be seen from here: AUTOSYNC_SECRET is not set on this rank"),
    ],
)
def test_a_server_with_another_secret_is_none(theirs: str, ours: str, words: str) -> None:
    store = dist.HashStore()
    letters = Letters(_door(store, theirs), theirs, "server", "s0")
    letters.put("free", {"server": OTHER, "has_values": True})
    with pytest.raises(OperationError, match=r"no server is there for node s0 after 0\.3 s") as raised:
        invite(store, "s0", INVITATION, secret=ours, patience=dt.timedelta(seconds=0.3))
    assert words in str(raised.value)


FIELDS = {"session": "autosync/0/0,1/0", "rank": 2, "checks": True, "trace": None, "number": NUMBER}


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({}, True),
        ({"trace": "/shared/trace.json"}, True),
        ({"trace": "trace.json"}, False),
        ({"trace": "/a\0b"}, False),
        ({"trace": "/" + "a" * 5000}, False),
        ({"trace": 1}, False),
        ({"rank": 1}, False),
        ({"rank": True}, False),
        ({"rank": "2"}, False),
        ({"checks": 1}, False),
        ({"session": "x"}, False),
        ({"session": "autosync/../../0"}, False),
        ({"session": None}, False),
        ({"number": OTHER}, False),
        ({"extra": 1}, False),
    ],
)
def test_an_invitation_has_the_fields_of_one(changed: dict[str, Any], *, is_taken: bool) -> None:
    found = invitations._invitation_of({**FIELDS, **changed}, rank=2, number=NUMBER)
    assert (found is not None) == is_taken
    assert invitations._invitation_of({"session": FIELDS["session"]}, rank=2, number=NUMBER) is None


def test_a_letter_is_right_at_its_place_alone() -> None:
    store = dist.HashStore()
    letters = Letters(store, SECRET, "session", "a")
    letters.put("key", {"text": "words"}, NUMBER)
    assert letters.read("key", NUMBER) == {"text": "words"}
    assert letters.read("key", OTHER) is None
    assert letters.read("key") is None
    assert Letters(store, SECRET, "session", "b").read("key", NUMBER) is None
    assert Letters(store, SECRET + "?", "session", "a").read("key", NUMBER) is None
    store.set("other", store.get("key"))
    assert letters.read("other", NUMBER) is None
    assert letters.read("nothing") is None
    assert not store.check(["nothing"])


def test_a_wait_for_a_letter_has_an_end() -> None:
    store = dist.HashStore()
    store.set("key", "junk")
    letters = Letters(store, SECRET)
    with pytest.raises(RuntimeError, match=r"nothing that it has sealed is there after 0\.2 s"):
        letters.wait(["key"], dt.timedelta(seconds=0.2))
    letters.set("key", "words")
    letters.wait(["key"], dt.timedelta(seconds=0.2))
    assert letters.get("key") == b"words"


def test_a_secret_that_can_be_guessed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "secret")
    with pytest.raises(InputError, match="AUTOSYNC_SECRET has 6 characters"):
        shared_secret()
    monkeypatch.delenv(SECRET_VARIABLE)
    assert shared_secret() == ""
