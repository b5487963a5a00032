"""Where the trials of studies live: any storage of Optuna's. Each study has a journal of its own unless told otherwise.

A storage that several machines reach lets them tune together; `sqlite:///FILE`, `postgresql://…` and what else
SQLAlchemy knows, or `journal:FILE` for a journal on a file system that they share.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from autosync.datasets.storage_files import check_database, check_journal, may_be_cut
from autosync.disk_errors import naming_file
from autosync.errors import DocumentError, InputError, OperationError, Problem

JOURNAL_SCHEME = "journal:"
SQLITE_FILE = ":///"
REPLAY_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Whatever Optuna's replay stumbles over: it has no error of its own for a line that is none of its own."""
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened to be locked: a pipe of that name is not waited for, a link is not followed."""
LOCK_MODE = 0o660
"""Others than the owner and the group may not open it: whoever can read a file can lock it, for as long as it likes."""
NUM_ATTEMPTS = 3
RETRY_SECONDS = 0.3
SQLITE_PATIENCE_SECONDS = 60


def lock_of(journal: Path) -> Path:
    """The file that is locked while a journal is written to; it stays behind, empty."""
    return journal.with_name(f"{journal.name}.flock")


class _KernelLock(JournalFileOpenLock):
    """A lock that the kernel gives back when its holder dies, however it dies: nobody has to wait for the dead."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._path = lock_of(journal)
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        try:
            self._file = os.fdopen(os.open(self._path, LOCK_FLAGS, LOCK_MODE), "rb")
        except OSError as error:
            raise OperationError(f"{self._path} cannot be locked: {error.strerror}") from error
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        assert self._file is not None, "acquired before it is released"
        self._file.close()


class _LockedBackend(JournalFileBackend):
    """A journal whose errors name it; what could be written only in part is taken away again."""

    def __init__(self, path: Path, lock: _KernelLock) -> None:
        super().__init__(str(path), lock_obj=lock)
        self._path = path
        self._kernel_lock = lock
        self.num_lines = 0

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """What Optuna reads, counted: where its replay stumbles that is the line."""
        self.num_lines = log_number_from
        for operation in super().read_logs(log_number_from):
            self.num_lines += 1
            yield operation

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            with naming_file(self._path):
                super().append_logs(logs)
        except OSError:
            self._kernel_lock.acquire()
            try:
                _mend(self._path)
            finally:
                self._kernel_lock.release()
            raise


def open_journal(path: Path) -> BaseStorage:
    """A journal file, or a new one. A last line that breaks off is taken away: its writer was killed before it counted.

    What is no journal is refused as it is.
    """
    check_journal(path)
    lock = _KernelLock(path)
    lock.acquire()
    try:
        _mend(path)
    finally:
        lock.release()
    backend = _LockedBackend(path, lock)
    try:
        return JournalStorage(backend)
    except REPLAY_ERRORS as error:
        raise not_understood(path, backend.num_lines) from error


def not_understood(path: Path, line: int) -> DocumentError:
    """What is said of a journal whose lines are operations of Optuna's, but none that could follow one another."""
    what, rule = "the line cannot be understood", "a journal holds one operation of Optuna a line"
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=line)])


def _mend(path: Path) -> None:
    """Appending to a torn line would make one of two that nobody could read."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content) and may_be_cut(content[end:]):
            file.truncate(end)


def check_storage(url: str, *, is_new_allowed: bool = True) -> None:
    """Refuse a storage in a file that is none or could not be written to. Nothing is made, nothing is written."""
    journal = journal_of(url)
    if journal is not None:
        check_journal(journal, is_new_allowed=is_new_allowed)
        return
    if "://" not in url:
        rule = "sqlite:///FILE, postgresql://USER@HOST/DATABASE, another URL of SQLAlchemy's, or journal:FILE"
        raise InputError(f"{url!r} is no storage", rule=rule)
    # Options of the driver behind a `?` change nothing about where the file is.
    file = _database_file(url.partition("?")[0])
    if file is None:
        return
    check_database(file, is_new_allowed=is_new_allowed)
    if not is_new_allowed and not file.is_file():
        raise InputError(f"{file} is not there", rule="a storage's file holds the trials of its studies")


def open_storage(url: str, *, is_new_allowed: bool = True) -> BaseStorage:
    """The storage that a URL names; it is made if it is not there, unless that is not allowed."""
    journal = journal_of(url)
    if journal is not None:
        return open_journal(journal)
    check_storage(url, is_new_allowed=is_new_allowed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for attempt in range(NUM_ATTEMPTS):
        try:
            return _database(url, is_new_allowed=is_new_allowed)
        except ImportError as error:
            rule = "a database needs its driver installed"
            raise InputError(f"{without_password(url)}: {error}", rule=rule, hint="pip install DRIVER") from error
        except Exception as error:
            # Two tuners that begin at once both make the tables; who was late finds them made.
            if attempt == NUM_ATTEMPTS - 1:
                reason = str(error).replace(url, without_password(url)).partition("\n")[0]
                raise OperationError(f"the storage {without_password(url)} cannot be opened: {reason}") from error
            time.sleep(RETRY_SECONDS * (1 + random.random()))
    raise AssertionError("the last attempt returns or raises")


def _database(url: str, *, is_new_allowed: bool) -> RDBStorage:
    if not _is_sqlite(url):
        return RDBStorage(url, skip_table_creation=not is_new_allowed)
    waits = {"connect_args": {"timeout": SQLITE_PATIENCE_SECONDS}}
    storage = RDBStorage(url, engine_kwargs=waits, skip_table_creation=not is_new_allowed)
    # SQLite locks no rows: two tuners would both take the trial that waits, unless whole transactions take turns.
    sqlalchemy.event.listen(storage.engine, "connect", _without_own_transactions)
    sqlalchemy.event.listen(storage.engine, "begin", _take_turns)
    storage.engine.dispose()
    return storage


def _without_own_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _take_turns(connection: sqlalchemy.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_sqlite(url: str) -> bool:
    return _split(url).scheme.partition("+")[0] == "sqlite"


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InputError(f"{url!r} is no storage: {error}", rule="a URL, RFC 3986") from error


def journal_of(url: str) -> Path | None:
    """The journal that a URL names; None if it names a database."""
    if not url.startswith(JOURNAL_SCHEME):
        return None
    path = Path(url.removeprefix(JOURNAL_SCHEME))
    if not path.name:
        raise InputError(f"{url!r} names no file", rule="journal:FILE")
    return path


def _database_file(url: str) -> Path | None:
    """The file that a database is; None for one that a server holds, or the memory of this process."""
    name = url.partition(SQLITE_FILE)[2]
    # Behind a `?` are options of the driver, and `file:` names are its own language.
    return Path(name) if _is_sqlite(url) and name and not name.startswith((":", "file:")) and "?" not in name else None


def absolute(url: str) -> str:
    """The same storage by a URL that means it from any folder."""
    journal, file = journal_of(url), _database_file(url)
    if journal is not None:
        return f"{JOURNAL_SCHEME}{journal.absolute()}"
    return url if file is None else f"{url.partition(SQLITE_FILE)[0]}{SQLITE_FILE}{file.absolute()}"


def close_storage(storage: BaseStorage) -> None:
    """Let go of connections; harmless where there are none."""
    storage.remove_session()
    if isinstance(storage, RDBStorage):
        storage.engine.dispose()


def without_password(url: str) -> str:
    """What may be written down of a storage's URL; the driver finds passwords in its own places (~/.pgpass, say)."""
    parts = _split(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{host}"))
