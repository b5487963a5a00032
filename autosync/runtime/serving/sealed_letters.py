"""Letters in a store that others can write to: of what lies there only what was sealed with the secret is believed.

torch's TCPStore asks none of its clients who they are: every process that reaches its port can list, read, change and
delete its keys. So what workers and servers tell each other there is signed
(`autosync.signatures`), each letter for its key and for one occasion; whatever else lies there counts as nothing, and
is waited over. Without a secret the signature is a mere checksum, which anybody can make.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from autosync.errors import InputError
from autosync.signatures import MIN_SECRET_CHARACTERS, SECRET_VARIABLE, open_letter, sign_letter

POLL_SECONDS = 0.05
_NOTHING = b"-"


def shared_secret() -> str:
    """The secret that workers and servers of a training share: the environment's, or "" where there is none."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and len(secret) < MIN_SECRET_CHARACTERS:
        raise InputError(
            f"{SECRET_VARIABLE} has {len(secret)} characters",
            rule=f"a secret of at least {MIN_SECRET_CHARACTERS} characters, the same for workers and servers",
        )
    return secret


class Letters:
    """Letters between processes that have a secret, in a store; `place` says what they are about."""

    def __init__(self, store: Any, secret: str, *place: str) -> None:
        self._store = store
        self._secret = secret
        self._place = place

    def put(self, key: str, content: Mapping[str, Any], *occasion: str) -> None:
        """Lay down a letter for an occasion."""
        self._store.set(key, sign_letter(content, self._secret, *self._place, key, *occasion))

    def read(self, key: str, *occasion: str) -> dict[str, Any] | None:
        """The letter at a key for an occasion, if there is a right one. Never waits."""
        return open_letter(self._found(key), self._secret, *self._place, key, *occasion)

    def is_foreign(self, key: str) -> bool:
        """Whether something lies at a key that is no letter of ours."""
        return self._found(key) != _NOTHING and self.read(key) is None

    def clear(self, key: str) -> None:
        """Have nothing at a key."""
        self._store.set(key, _NOTHING)

    def _found(self, key: str) -> bytes:
        # A `get` waits where there is nothing; this puts nothing in the place of nothing.
        found: bytes = self._store.compare_set(key, _NOTHING.decode(), _NOTHING.decode())
        return found

    # As a store, for what ranks agree on before training (`agreement`).

    def set(self, key: str, text: str) -> None:
        """Lay down a text."""
        self.put(key, {"text": text})

    def get(self, key: str) -> bytes:
        """The text at a key, which has been waited for."""
        letter = self.read(key)
        text = "" if letter is None else str(letter.get("text", ""))
        return text.encode()

    def wait(self, keys: Sequence[str], patience: dt.timedelta) -> None:
        """Wait until there is a letter at each key; RuntimeError, as of stores, where one is late."""
        deadline = time.monotonic() + patience.total_seconds()
        while any(self.read(key) is None for key in keys):
            if time.monotonic() >= deadline:
                raise RuntimeError(f"nothing that it has sealed is there after {patience.total_seconds():g} s")
            time.sleep(POLL_SECONDS)
