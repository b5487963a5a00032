"""Files and folders that are written as a whole, and names that a folder may have."""

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
    """A file to write to that takes its name when all is written; one that is there is replaced with `force` only."""
    refuse_overwrite(path, force=force)
    with jsonio.replacing(path) as file:
        yield file


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that takes its name when all is in it; one that is there already is never replaced."""
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
            # The user knows the folder by the name that it was to have.
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def folder_name(name: str) -> str:
    """A name as a folder may have it anywhere: without slashes or a dot ahead, not long; another for another name."""
    safe = quote(name, safe="@+,= ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    return safe if len(safe) <= _MAX_NAME else f"{safe[: _MAX_NAME - 20]}-{jsonio.content_hash(name)}"


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Stop where a folder is in the way, or a file that may not be replaced; or where no file can be made."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", rule="the output is a file")
    if path.is_file() and not force:
        raise InputError(f"{path} exists", rule="no file is replaced unasked", hint="--force replaces it")
    if not path.exists() or path.is_file():
        check_writable(path)


def refuse_folder(path: Path) -> None:
    """Stop where there is something already, or where no folder can be made."""
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists", rule="a folder is never replaced", hint="name another one")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Stop where a file or folder of this name could not be made: before the work whose result it is to hold.

    What would be made in the nearest folder that is there is tried, and leaves nothing behind.
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
