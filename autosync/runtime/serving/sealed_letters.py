"""Letters in a store that others can write to: only letters that were sealed with the secret are believed.

torch's TCPStore does not check its clients: every process that reaches its port can list, read, change and delete its
keys. So workers and servers sign what they tell each other there (`autosync.signatures`), each letter for its key and
for one occasion. Anything else in the store is ignored, and the reader goes on waiting. Without a secret, the signature
is a mere checksum, which anybody can make.
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
    """Return the secret that a training's workers and servers share, from the environment; "" if there is none."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and len(secret) < MIN_SECRET_CHARACTERS:
        raise InputError(
            f"{SECRET_VARIABLE} has {len(secret)} characters",
            rule=f"a secret of at least {MIN_SECRET_CHARACTERS} characters, the same for workers and servers",
        )
    return secret


class Letters:
    """Letters in a store between processes that share a secret; `place` tells what the letters are about."""

    def __init__(self, store: Any, secret: str, *place: str) -> None:
        self._store = store
        self._secret = secret
        self._place = place

    def put(self, key: str, content: Mapping[str, Any], *occasion: str) -> None:
        """Write a letter for an occasion."""
        self._store.set(key, sign_letter(content, self._secret, *self._place, key, *occasion))

    def read(self, key: str, *occasion: str) -> dict[str, Any] | None:
        """Return the valid letter at a key for an occasion, or None. Never waits."""
        return open_letter(self._found(key), self._secret, *self._place, key, *occasion)

    def is_foreign(self, key: str) -> bool:
        """Whether something other than a valid letter is stored at a key."""
        return self._found(key) != _NOTHING and self.read(key) is None

    def clear(self, key: str) -> None:
        """Mark a key as empty."""
        self._store.set(key, _NOTHING)

    def _found(self, key: str) -> bytes:
        # A `get` waits if there is no such key. This call returns at once, and at most marks an empty key as empty.
        found: bytes = self._store.compare_set(key, _NOTHING.decode(), _NOTHING.decode())
        return found

    # The same methods as a store, for what ranks agree on before training (`agreement`).

    def set(self, key: str, text: str) -> None:
        """Write a text."""
        self.put(key, {"text": text})

    def get(self, key: str) -> bytes:
        """Return the text at a key. Call `wait` for the key before."""
        letter = self.read(key)
        text = "" if letter is None else str(letter.get("text", ""))
        return text.encode()

    def wait(self, keys: Sequence[str], patience: dt.timedelta) -> None:
        """Wait until there is a letter at each key; raise RuntimeError, as stores do, if one is late."""
        deadline = time.monotonic() + patience.total_seconds()
        while any(self.read(key) is None for key in keys):
            if time.monotonic() >= deadline:
                raise RuntimeError(f"nothing that it has sealed is there after {patience.total_seconds():g} s")
            time.sleep(POLL_SECONDS)
