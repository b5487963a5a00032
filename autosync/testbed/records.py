"""The record of each testbed: its layout, its users, and whether it is whole.

Each record is a file; one lock protects all records.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

from autosync import documents, jsonio
from autosync.documents import STRICT
from autosync.errors import InputError, OperationError
from autosync.testbed import processes
from autosync.testbed.folders import NamespaceFolders
from autosync.testbed.layout import NetworkLayout

KIND = "testbed"
VERSION = 1
LOCK_SECONDS = 120.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A process's right to use a testbed; void once the process has ended. A process may have several leases."""

    __pydantic_config__ = STRICT

    pid: int
    started: str
    token: str

    @property
    def is_live(self) -> bool:
        return processes.start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedRecord:
    """The record of a testbed. It is not whole if the process that built or removed it was killed.

    A testbed that `is_kept` stays until `down`; any other is taken down with its last lease. `file` is the path of the
    cluster file for which it is kept, if that is known. If it `has_other_rates` than its cluster, it is built anew for
    its next user after the present ones.
    """

    __test__ = False
    __pydantic_config__ = STRICT

    layout: NetworkLayout
    is_whole: bool = False
    is_kept: bool = False
    has_other_rates: bool = False
    file: str | None = None
    leases: tuple[Lease, ...] = ()

    @property
    def users(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if lease.is_live)

    @property
    def is_left_over(self) -> bool:
        return not self.is_whole or not (self.is_kept or self.users)


def new_lease() -> Lease:
    """Return a new lease of this process."""
    pid = os.getpid()
    started = processes.start_time(pid)
    assert started is not None, "this process runs"
    return Lease(pid=pid, started=started, token=secrets.token_hex(8))


def write(folders: NamespaceFolders, record: TestbedRecord) -> None:
    jsonio.write_json(folders.record(record.layout.key), documents.dump(record, kind=KIND, version=VERSION))


def read(folders: NamespaceFolders, key: str) -> TestbedRecord | None:
    """Return the record of a testbed, or None if no record can be read."""
    path = folders.record(key)
    if not path.exists():
        return None
    try:
        return documents.load(path, kind=KIND, version=VERSION, into=TestbedRecord)[0]
    except InputError:
        return None


def read_all(folders: NamespaceFolders) -> list[TestbedRecord]:
    found = (read(folders, key) for key in folders.recorded())
    return [record for record in found if record is not None]


@contextlib.contextmanager
def locked(folders: NamespaceFolders) -> Iterator[int]:
    """Hold the lock of all testbeds during the block; yield its descriptor, with which child processes hold it too."""
    descriptor = os.open(folders.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another autosync has held {folders.folder / 'lock'} for {LOCK_SECONDS:g} s"
                    raise OperationError(message) from None
                time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)
