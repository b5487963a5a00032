"""Files and folders that are written as a whole, and names that a folder may have."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from autosync import jsonio
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
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} exists", rule="a folder is never replaced", hint="name another one")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".autosync-{secrets.token_hex(8)}"
    try:
        temporary.mkdir()
        yield temporary
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def folder_name(name: str) -> str:
    """A name as a folder may have it anywhere: without slashes or a dot ahead, not long; another for another name."""
    safe = quote(name, safe="@+,= ")
    if safe.startswith("."):
        safe = f"%2E{safe[1:]}"
    return safe if len(safe) <= _MAX_NAME else f"{safe[: _MAX_NAME - 20]}-{jsonio.content_hash(name)}"


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Stop where a folder is in the way, or a file that may not be replaced."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", rule="the output is a file")
    if path.is_file() and not force:
        raise InputError(f"{path} exists", rule="no file is replaced unasked", hint="--force replaces it")
