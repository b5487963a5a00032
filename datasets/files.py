"""Files that are written as a whole, whatever their bytes are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from autosync.errors import InputError


@contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write to that takes its name when all is written: until then, and after an error, nothing has changed.

    A file that is there already is replaced with `force` only. Something else than a file (a pipe) is written to.
    """
    refuse_overwrite(path, force=force)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    # Through a link to the file itself: the link stays.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".autosync-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Stop where a folder is in the way, or a file that may not be replaced."""
    if path.is_dir():
        raise InputError(f"{path} is a folder", rule="the output is a file")
    if path.is_file() and not force:
        raise InputError(f"{path} exists", rule="no file is replaced unasked", hint="force replaces it")
