"""Full disks, by name: where a write fails the system says so, but not of which file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FEWEST_BYTES = 1 << 16
"""Less is as good as nothing: a page or two come free whenever a file is taken away."""


def is_full(path: Path) -> bool:
    """Whether hardly anything more can be written where a file or a folder is."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    # What the kernel shows as files has no blocks at all.
    return facts.f_blocks > 0 and facts.f_bavail * facts.f_frsize < _FEWEST_BYTES


def full_note(path: Path) -> str:
    """What to add to what is said of a process that writes here: nothing unless the disk is full."""
    return f": the disk of {path} is full" if is_full(path) else ""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """While a file is written: errors of the system name it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_full_error(error: BaseException) -> bool:
    """Whether there was no room."""
    return isinstance(error, OSError) and error.errno in _FULL


def told(error: BaseException | None) -> str:
    """What to add to an error that came of a full disk and names no file: those that this process writes there."""
    while error is not None:
        if is_full_error(error) and getattr(error, "filename", None) is None:
            return "".join(dict.fromkeys(map(full_note, _written())))
        error = error.__cause__
    return ""


def _written() -> Iterator[Path]:
    """The files that this process has open for writing, where the system tells."""
    with contextlib.suppress(OSError):
        for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda one: int(one.name)):
            with contextlib.suppress(OSError):
                path = entry.readlink()
                facts = Path("/proc/self/fdinfo", entry.name).read_text(encoding="ascii")
                flags = next(int(line.split()[1], 8) for line in facts.splitlines() if line.startswith("flags:"))
                if path.is_absolute() and path.is_file() and flags & (os.O_WRONLY | os.O_RDWR):
                    yield path
