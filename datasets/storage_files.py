"""Checks whether a file may be written to as the storage of studies, before a byte is written.

A file that is already a storage is continued, and a file that does not exist is created. Any other file is refused and
stays unchanged, because using it as a storage would destroy it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from pathlib import Path
from urllib.parse import quote

from autosync import jsonio
from autosync.errors import InputError, Problem

_OPERATION = b'{"op_code":'
_OPERATIONS = range(11)
_NEW_STUDY = b'{"op_code":0,'
MAX_OPERATIONS = 250_000
"""The limit of operations in a journal; a trial has about ten."""
MAX_STUDIES = 1_000
"""The limit of studies in a journal, because Optuna compares the name of each new study with all existing ones."""
_SQLITE_HEADER = b"SQLite format 3\0"
_NEEDED_TABLES = frozenset({"studies", "trials", "version_info"})
_OPTUNA_TABLE = re.compile(r"studies|study_\w+|trials|trial_\w+|version_info|alembic_version")
_SQLITE_PATIENCE_SECONDS = 60

_JOURNAL_RULE = "a journal of Optuna's, or a file that is not there yet"
SIZE_RULE = f"at most {MAX_OPERATIONS:,} operations and {MAX_STUDIES:,} studies in one journal"
_DATABASE_RULE = "an SQLite database of Optuna's, or a file that is not there yet"


def check_journal(path: Path, *, is_new_allowed: bool = True) -> None:
    """Refuse a file that is not a journal of Optuna or could not be written to. It reads the whole file."""
    if not _is_there(path, _JOURNAL_RULE, is_new_allowed=is_new_allowed):
        return
    with path.open("rb") as file:
        if not _may_become_operation(file.read(len(_OPERATION))):
            raise _refused(path, "is no journal", _JOURNAL_RULE, 1)
        file.seek(0)
        number, num_studies = 0, 0
        # The part of a line that is too long has no line end, so it is not an operation.
        while line := file.readline(jsonio.MAX_LINE_BYTES):
            number += 1
            # A last line that is cut off comes from a tuner that was killed while it wrote.
            is_torn = not line.endswith(b"\n")
            if not (_may_become_operation(line) if is_torn else _is_operation(line)):
                raise _refused(path, "is no journal", _JOURNAL_RULE, number)
            num_studies += line.startswith(_NEW_STUDY)
            if is_too_large(number, num_studies):
                raise _refused(path, "is too large", SIZE_RULE, number)


def is_too_large(num_operations: int, num_studies: int) -> bool:
    """Return whether a journal with these numbers of operations and studies is too large."""
    return num_operations > MAX_OPERATIONS or num_studies > MAX_STUDIES


def may_be_cut(tail: bytes) -> bool:
    """Return whether the rest after a journal's last complete line is a part of an operation and may be removed."""
    return _may_become_operation(tail)


def check_database(path: Path, *, is_new_allowed: bool = True) -> None:
    """Refuse a file that is not an SQLite database of Optuna or could not be written to."""
    if not _is_there(path, _DATABASE_RULE, is_new_allowed=is_new_allowed):
        return
    with path.open("rb") as file:
        head = file.read(len(_SQLITE_HEADER))
    if not head:
        return
    if head != _SQLITE_HEADER:
        raise _refused(path, "is no SQLite database", _DATABASE_RULE)
    tables = _tables(path)
    # Another tuner may be creating them, one after another.
    if not tables >= _NEEDED_TABLES and not all(map(_OPTUNA_TABLE.fullmatch, tables)):
        raise _refused(path, "is a database of something else", _DATABASE_RULE)


def _tables(path: Path) -> set[str]:
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_SQLITE_PATIENCE_SECONDS
        )
        try:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _refused(path, f"cannot be read as an SQLite database: {error}", _DATABASE_RULE) from error
    return {str(name) for (name,) in rows if not str(name).startswith("sqlite_")}


def _is_there(path: Path, rule: str, *, is_new_allowed: bool) -> bool:
    """Return whether the file exists. An existing file must be writable; a new one needs its folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        folder = path.resolve().parent
        if is_new_allowed and not folder.is_dir():
            raise _refused(path, "cannot be made: its folder is not there", "the folder of a storage exists") from None
        if is_new_allowed and not os.access(folder, os.W_OK | os.X_OK):
            raise _refused(path, f"cannot be made: {folder} may not be written to", rule) from None
        return False
    except (OSError, ValueError) as error:
        raise _refused(path, f"cannot be opened: {getattr(error, 'strerror', None) or error}", rule) from error
    if not stat.S_ISREG(mode):
        raise _refused(path, f"is {_kind_of(mode)}, not a file", rule)
    needed, words = (os.R_OK | os.W_OK, "read and written") if is_new_allowed else (os.R_OK, "read")
    if not os.access(path, needed):
        raise _refused(path, f"may not be {words}", "a storage is written to") from None
    return True


def _kind_of(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _is_operation(line: bytes) -> bool:
    """Return whether a line is one operation of Optuna."""
    if not line.startswith(_OPERATION):
        return False
    try:
        operation = jsonio.parse(line)
    except ValueError:
        return False
    if not isinstance(operation, dict) or not isinstance(operation.get("worker_id"), str):
        return False
    code = operation.get("op_code")
    return type(code) is int and code in _OPERATIONS


def _may_become_operation(tail: bytes) -> bool:
    """Return whether a line that is cut off could be the beginning of an operation."""
    head = tail[: len(_OPERATION)]
    return head == _OPERATION[: len(head)]


def _refused(path: Path, what: str, rule: str, line: int = 0) -> InputError:
    problem = Problem(what=f"the storage {what}", rule=rule, hint="the file is as it was", file=str(path), line=line)
    return InputError([problem])
