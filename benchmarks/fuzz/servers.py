"""Hostile content for servers: letters in the store that servers and first workers read, and words during training.

A sender without the secret must not be believed. A sender with the secret can only set the defined fields. After
hostile content a correct message follows, which must be accepted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.runtime.serving.invitations import Invitation, _door, _letters, await_invitation, hear, invite
from autosync.signatures import draw_number, open_letter, sign_letter
from benchmarks.fuzz.kinds import Attempt, Failure, Maker
from tests.helpers.damaged_files import damaged, hostile_json

SECRET = "0123456789abcdef" * 2
NODE = "n0"
_PAUSE_SECONDS = 0.12
"""A pause that is longer than a server needs to check its letters."""
_PATIENCE = dt.timedelta(seconds=15)
_INVITATION = Invitation(session="autosync/1/0,1/2", rank=2, checks=True, trace=None, number="0" * 32)


def maker(_kind: str, originals: Path) -> Maker:
    """Return a maker of letters and words."""
    del originals

    def make(rng: random.Random, box: Path) -> Attempt:
        del box
        raw = [_letter(rng) for _ in range(3)]
        fields = [_mapping(hostile_json(content, rng)) for content in _contents()]
        word = _word(rng)
        what = rng.random()
        if what < 0.5:
            return lambda: _read(raw[0])
        if what < 0.7:
            return lambda: _hear(*word)
        if what < 0.85:
            return lambda: _inviting(raw, fields[0])
        return lambda: _invited(raw, fields[1], fields[2])

    return make


def _contents() -> list[dict[str, Any]]:
    """Return the content of a free server's notice, of a worker's call, and of the invitation."""
    notice = {"server": "1" * 32, "has_values": True}
    return [notice, {"number": "0" * 32}, dataclasses.asdict(_INVITATION)]


def _mapping(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _letter(rng: random.Random) -> bytes:
    """Return a letter that is damaged, sealed with another secret or for another place, or not a letter."""
    good = sign_letter({"server": "1" * 32, "has_values": True}, SECRET, "server", NODE, "free")
    other = sign_letter({"server": "1" * 32}, rng.choice(("", "x" * 16)), "server", NODE, "free")
    return rng.choice(
        (other, damaged(good, rng), hostile_json(json.loads(good), rng), b"", b"null", b"[" * 100_000, b"\xff")
    )


def _read(raw: bytes) -> str:
    content = open_letter(raw, SECRET, "server", NODE, "free")
    if content not in (None, {"server": "1" * 32, "has_values": True}):
        raise Failure(f"a letter that was never sealed was believed: {content!r}")
    return "refused" if content is None else "taken"


def _put_all(store: Any, raw: list[bytes], server: str) -> None:
    """Put invalid values in every place for letters."""
    for key, junk in zip((f"{server}/call", f"{server}/answer", f"{server}/invitation"), raw, strict=True):
        store.set(key, junk)


def _inviting(raw: list[bytes], notice: dict[str, Any]) -> str:
    """Run a first worker that finds a notice from a process with the secret."""
    store = dist.HashStore()
    letters = _letters(store, NODE, SECRET)
    letters.put("free", notice)
    _put_all(_door(store, NODE, SECRET), raw, "1" * 32)
    try:
        invite(store, NODE, _INVITATION, secret=SECRET, patience=dt.timedelta(seconds=_PAUSE_SECONDS))
    except OperationError:
        return "refused"
    raise Failure("a server that does not answer was invited")


def _invited(raw: list[bytes], call: dict[str, Any], invitation: dict[str, Any]) -> str:
    """Run a server that is called and invited with hostile content by a process with the secret, then by its worker."""
    store = dist.HashStore()
    letters = _letters(store, NODE, SECRET)
    right = dataclasses.replace(_INVITATION, number=draw_number())
    errors: list[str] = []

    def play() -> None:
        deadline = time.monotonic() + _PATIENCE.total_seconds()
        while (notice := letters.read("free")) is None:
            if time.monotonic() > deadline:
                errors.append("no server was free")
                return
            time.sleep(0.01)
        server = str(notice["server"])
        _put_all(_door(store, NODE, SECRET), raw, server)
        letters.put(f"{server}/call", {**call, "number": [call.get("number")]})
        time.sleep(_PAUSE_SECONDS)
        letters.put(f"{server}/call", {"number": right.number})
        letters.put(f"{server}/invitation", invitation, right.number)
        time.sleep(_PAUSE_SECONDS)
        letters.put(f"{server}/invitation", dataclasses.asdict(right), right.number)

    player = threading.Thread(target=play)
    player.start()
    try:
        found = await_invitation(store, NODE, rank=2, secret=SECRET, has_values=False, patience=_PATIENCE)
    finally:
        player.join()
    if errors or found != right:
        raise Failure(f"the server went with {found!r} {errors}")
    return "taken"


class _Links:
    """Links that deliver two tensors."""

    def __init__(self, *contents: torch.Tensor) -> None:
        self._contents = list(contents)

    def receive(self, into: torch.Tensor, _peer: int, _tag: int) -> _Links:
        content = self._contents.pop(0)
        into[: len(content)] = content[: len(into)]
        return self

    def wait(self, _patience: object = None) -> None:
        """Return at once: nothing is being transferred."""


def _word(rng: random.Random) -> tuple[list[int], bytes]:
    """Return a word's number and length, and its text."""
    size = rng.choice((0, 1, 4, 4, 4, -1, 2**31, 2**40, 2**62, -(2**63)))
    number = rng.choice((0, 1, 2, 5, 6, 255, -1, -7, 2**62))
    return [number, size], rng.choice((b"{}  ", b"\xff\xff\xff\xff", b"\0\0\0\0"))


def _hear(header: list[int], text: bytes) -> str:
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    links: Any = _Links(torch.tensor(header), body)
    word, _ = hear(links, patience=_PATIENCE)
    if not isinstance(word, str):
        raise Failure(f"a word is a {type(word).__name__}")
    return "taken"
