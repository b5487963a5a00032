"""The actions that this user once typed, as hashes in the user's own state folder.

A study or a bundle cannot bring its own consent along: the file is read only if no other user could have written it.
Without a state folder (no HOME, nothing writable) nothing is remembered, and the user is asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from autosync import jsonio

SCHEMA = "autosync.trusted/1"
STATE_VARIABLE = "XDG_STATE_HOME"
MAX_REMEMBERED = 4096
"""The number of hashes that are kept. Older ones are forgotten, and the user is asked again."""
_MAX_BYTES = 1 << 20


def trusted_file() -> Path | None:
    """Return the file of hashes, or None if this user has no state folder."""
    given = os.environ.get(STATE_VARIABLE, "")
    if given.startswith("/"):
        return Path(given) / "autosync" / "trusted.json"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".local" / "state" / "autosync" / "trusted.json" if home.is_absolute() else None


def recall() -> frozenset[str]:
    """Return the remembered hashes; none if other users could have written the file, or if it is malformed."""
    path = trusted_file()
    return frozenset() if path is None else frozenset(_read(path))


def remember(hashes: Iterable[str]) -> None:
    """Add hashes to the file. Does nothing if the file cannot be written."""
    new = list(dict.fromkeys(hashes))
    path = trusted_file()
    if not new or path is None or set(new) <= recall():
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _alone(path):
            kept = list(dict.fromkeys([*_read(path), *new]))[-MAX_REMEMBERED:]
            jsonio.write_json(path, {"schema": SCHEMA, "hashes": kept})
            # Set without regard to the umask: a file that other users may write is not trusted.
            path.chmod(0o600)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock during the block, so that two processes can add hashes at the same time."""
    with path.with_name("lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> list[str]:
    try:
        # Do not wait if the file was replaced by a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        is_untrusted = facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(facts.st_mode) or is_untrusted or facts.st_size > _MAX_BYTES:
            return []
        try:
            fields = json.loads(file.read(_MAX_BYTES))
        except (ValueError, RecursionError):
            return []
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA or not isinstance(fields.get("hashes"), list):
        return []
    return [one for one in fields["hashes"] if isinstance(one, str)]
