"""The storages of trials: any storage of Optuna. By default each study has its own journal.

Several machines can tune together in a storage that all of them reach: `sqlite:///FILE`, `postgresql://…` and other
URLs of SQLAlchemy, or `journal:FILE` for a journal on a shared file system.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any
from urllib.parse import SplitResult, urlsplit

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
"""All errors that Optuna's replay raises for an invalid line; it has no error of its own for this."""
LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""The flags for opening a file to lock it: they do not wait for a pipe and do not follow a link."""
LOCK_MODE = 0o660
"""The mode of lock files: only the owner and the group may open them, because any process that can read a file could
keep it locked."""
NUM_ATTEMPTS = 3
RETRY_SECONDS = 0.3
SQLITE_PATIENCE_SECONDS = 60


def lock_of(journal: Path) -> Path:
    """Return the file that is locked while a journal is written. It remains, empty."""
    return journal.with_name(f"{journal.name}.flock")


class _KernelLock(JournalFileOpenLock):
    """A lock that the kernel releases when its holder dies, so that other processes never wait for a dead one."""

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
    """A journal whose errors name its file. An operation that could be written only in part is removed again."""

    def __init__(self, path: Path, lock: _KernelLock) -> None:
        super().__init__(str(path), lock_obj=lock)
        self._path = path
        self._kernel_lock = lock
        self.num_lines = 0

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Read the operations and count them, so that an error of Optuna's replay can name its line."""
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
    """Open a journal file, or a new one. Remove a last line that is cut off: its writer was killed before it counted.

    A file that is not a journal is refused and stays unchanged.
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
    """Return the error for a journal whose lines are operations of Optuna but cannot follow one another."""
    what, rule = "the line cannot be understood", "a journal holds one operation of Optuna a line"
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=line)])


def _mend(path: Path) -> None:
    """Remove a last line that is cut off. Appending to it would make the next line unreadable as well."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content) and may_be_cut(content[end:]):
            file.truncate(end)


_PASSWORD_OPTIONS = frozenset({"password", "passwd", "sslpassword"})
_URL_RULE = "sqlite:///FILE, postgresql://USER@HOST/DATABASE, another URL of SQLAlchemy's, or journal:FILE"


def check_storage(url: str, *, is_new_allowed: bool = True) -> None:
    """Refuse a file that is not a storage or could not be written to. This writes nothing."""
    journal = journal_of(url)
    if journal is not None:
        check_journal(journal, is_new_allowed=is_new_allowed)
        return
    if "://" not in url:
        raise InputError(f"{url!r} is no storage", rule=_URL_RULE)
    # Options of the driver after a `?` do not change which file it is.
    file = _database_file(url.partition("?")[0])
    if file is None:
        _check_driver(url)
        return
    check_database(file, is_new_allowed=is_new_allowed)
    if not is_new_allowed and not file.is_file():
        raise InputError(f"{file} is not there", rule="a storage's file holds the trials of its studies")


def _check_driver(url: str) -> None:
    """Refuse a database whose driver is not installed, and name the package."""
    try:
        sqlalchemy.make_url(url).get_dialect().import_dbapi()
    except ImportError as error:
        what = f"{without_password(url)}: the Python package {error.name or ''} is not installed".replace("  ", " ")
        hint = "pip install 'autosync-torch[postgresql]'" if url.startswith("postgresql") else ""
        raise InputError(what, rule="a database needs its driver", hint=hint) from error
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise InputError(f"{without_password(url)!r} is no storage: {error}", rule=_URL_RULE) from error


def open_storage(url: str, *, is_new_allowed: bool = True) -> BaseStorage:
    """Return the storage of a URL. It is created if it does not exist and this is allowed."""
    journal = journal_of(url)
    if journal is not None:
        return open_journal(journal)
    check_storage(url, is_new_allowed=is_new_allowed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for attempt in range(NUM_ATTEMPTS):
        try:
            return _database(url, is_new_allowed=is_new_allowed)
        except Exception as error:
            # Two tuners that begin at once both create the tables; the second one gets an error and tries again.
            if attempt == NUM_ATTEMPTS - 1:
                reason = str(error).replace(url, without_password(url)).partition("\n")[0]
                raise OperationError(f"the storage {without_password(url)} cannot be opened: {reason}") from error
            time.sleep(RETRY_SECONDS * (1 + random.random()))
    raise AssertionError("the last attempt returns or raises")


def _database(url: str, *, is_new_allowed: bool) -> RDBStorage:
    if not _is_sqlite(url):
        # A trial may take minutes, and a server or a firewall ends connections that are idle for so long.
        return RDBStorage(url, engine_kwargs={"pool_pre_ping": True}, skip_table_creation=not is_new_allowed)
    waits = {"connect_args": {"timeout": SQLITE_PATIENCE_SECONDS}}
    storage = RDBStorage(url, engine_kwargs=waits, skip_table_creation=not is_new_allowed)
    # SQLite locks no rows. Two tuners would both take the waiting trial, unless whole transactions take turns.
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
    """Return the journal that a URL names; None if it names a database."""
    if not url.startswith(JOURNAL_SCHEME):
        return None
    path = Path(url.removeprefix(JOURNAL_SCHEME))
    if not path.name:
        raise InputError(f"{url!r} names no file", rule="journal:FILE")
    return path


def _database_file(url: str) -> Path | None:
    """Return the file of a database; None for a database on a server or in this process's memory."""
    name = url.partition(SQLITE_FILE)[2]
    # Options of the driver follow a `?`, and names with `file:` have their own syntax.
    return Path(name) if _is_sqlite(url) and name and not name.startswith((":", "file:")) and "?" not in name else None


def absolute(url: str) -> str:
    """Return a URL of the same storage that is valid from every folder."""
    journal, file = journal_of(url), _database_file(url)
    if journal is not None:
        return f"{JOURNAL_SCHEME}{journal.absolute()}"
    return url if file is None else f"{url.partition(SQLITE_FILE)[0]}{SQLITE_FILE}{file.absolute()}"


def close_storage(storage: BaseStorage) -> None:
    """Close the connections, if there are any."""
    storage.remove_session()
    if isinstance(storage, RDBStorage):
        storage.engine.dispose()


def said_by_database(error: BaseException) -> str:
    """Return what a database said: its useful words are in the cause of Optuna's error."""
    return str(error.__cause__ or error).partition("\n")[0]


def without_password(url: str) -> str:
    """Return a storage's URL without its password, for files.

    Drivers read passwords from elsewhere (such as ~/.pgpass).
    """
    if journal_of(url) is not None:
        return url
    # SQLAlchemy finds passwords that other parsers of URLs do not, as one with a slash; drivers take one as an option.
    try:
        parts = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise InputError("the URL that was given is no storage: it cannot be read", rule=_URL_RULE) from error
    if parts.password is None and not parts.query.keys() & _PASSWORD_OPTIONS:
        return url
    # set() takes None for no change.
    found = parts._replace(password=None).difference_update_query(_PASSWORD_OPTIONS)
    return found.render_as_string(hide_password=False)
