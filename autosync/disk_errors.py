"""Makes errors about files name the file. The system's own errors often do not, above all when a disk is full."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FEWEST_BYTES = 1 << 16
"""A disk with less free space counts as full: a page or two come free whenever a file is removed."""


def is_full(path: Path) -> bool:
    """Whether the disk of a file or folder has hardly any free space."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return False
    # File systems of the kernel (/proc) have no blocks.
    return facts.f_blocks > 0 and facts.f_bavail * facts.f_frsize < _FEWEST_BYTES


def full_disk_note(path: Path) -> str:
    """Return a note for messages about a process that writes to this path; empty unless its disk is full."""
    return f": the disk of {path} is full" if is_full(path) else ""


@contextlib.contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Make every OSError of this block name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def open_input(path: Path) -> BinaryIO:
    """Open a file for reading, without ever waiting for another program.

    Named pipes, devices and folders are refused. A file that the shell opened (`<(command)`, /dev/stdin) may be a pipe.
    """
    is_handed_over = str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if not is_handed_over:
        _refuse_special(path, path.stat().st_mode)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_handed_over else os.O_NONBLOCK))
    try:
        if not is_handed_over:
            _refuse_special(path, os.fstat(file).st_mode)
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def is_full_error(error: BaseException) -> bool:
    """Whether the error means that a disk or quota is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def full_disk_cause(error: BaseException | None) -> str:
    """Return a note that names this process's files on full disks.

    The note is empty unless a full disk caused the error and the error names no file.
    """
    while error is not None:
        if is_full_error(error) and getattr(error, "filename", None) is None:
            return "".join(dict.fromkeys(map(full_disk_note, _written())))
        error = error.__cause__
    return ""


def _written() -> Iterator[Path]:
    """Yield the files that this process has open for writing (Linux only)."""
    with contextlib.suppress(OSError):
        for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda one: int(one.name)):
            with contextlib.suppress(OSError):
                path = entry.readlink()
                facts = Path("/proc/self/fdinfo", entry.name).read_text(encoding="ascii")
                flags = next(int(line.split()[1], 8) for line in facts.splitlines() if line.startswith("flags:"))
                if path.is_absolute() and path.is_file() and flags & (os.O_WRONLY | os.O_RDWR):
                    yield path
