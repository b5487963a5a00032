"""Files and folders that are written completely or not at all, and safe names of folders."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from autosync import jsonio
from autosync.disk_errors import is_full
from autosync.errors import InputError

_MAX_NAME = 100


@contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Open a file that gets its name when everything is written. An existing file is replaced only with `force`."""
    refuse_overwrite(path, force=force)
    with jsonio.replacing(path) as file:
        yield file


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder that gets its name when the block ends without an error.

    It never replaces an existing folder.
    """
    refuse_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".autosync-{secrets.token_hex(8)}"
    try:
        temporary.mkdir()
        yield temporary
        temporary.rename(target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and str(error.filename or temporary).startswith(str(temporary)):
            # The user only knows the final name of the folder.
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def folder_name(name: str) -> str:
    """Return a name as a safe folder name: without slashes or a leading dot, and short.

    Different names stay different.
    """
    safe = quote(name, safe="@+,= ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    return safe if len(safe) <= _MAX_NAME else f"{safe[: _MAX_NAME - 20]}-{jsonio.content_hash(name)}"


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Raise if the path is a folder, a file that may not be replaced, or in a place where no file can be made."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", rule="the output is a file")
    if path.is_file() and not force:
        raise InputError(f"{path} exists", rule="no file is replaced unasked", hint="--force replaces it")
    if not path.exists() or path.is_file():
        check_writable(path)


def refuse_folder(path: Path) -> None:
    """Raise if the path exists, or if no folder can be made there."""
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists", rule="a folder is never replaced", hint="name another one")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise if no file or folder can be made at this path. Call this before the work whose result it will hold.

    The check makes a temporary file in the nearest existing folder, and leaves nothing behind.
    """
    folder = path.resolve().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    if is_full(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
