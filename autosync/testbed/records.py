"""What is known of each testbed: its layout, who uses it, whether it is whole. A file each, one lock for all."""

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
from autosync.testbed.layout import Layout
from autosync.testbed.places import Places

KIND = "testbed"
VERSION = 1
LOCK_SECONDS = 120.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A process that uses a testbed; void once it has ended. One process may have several."""

    __pydantic_config__ = STRICT

    pid: int
    started: str
    token: str

    @property
    def is_live(self) -> bool:
        return processes.start_time(self.pid) == self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A testbed. One that is not `is_whole` was being built or removed when whoever did so was killed.

    One that is kept stays until `down`; any other goes with its last lease.
    """

    __pydantic_config__ = STRICT

    layout: Layout
    is_whole: bool = False
    is_kept: bool = False
    leases: tuple[Lease, ...] = ()

    @property
    def users(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if lease.is_live)

    @property
    def is_left_over(self) -> bool:
        return not self.is_whole or not (self.is_kept or self.users)


def new_lease() -> Lease:
    """A lease of this process."""
    pid = os.getpid()
    started = processes.start_time(pid)
    assert started is not None, "this process runs"
    return Lease(pid=pid, started=started, token=secrets.token_hex(8))


def write(places: Places, record: Record) -> None:
    jsonio.write_json(places.record(record.layout.key), documents.dump(record, kind=KIND, version=VERSION))


def read(places: Places, key: str) -> Record | None:
    """The record of a testbed; None where there is none that can be read."""
    path = places.record(key)
    if not path.exists():
        return None
    try:
        return documents.load(path, kind=KIND, version=VERSION, into=Record)[0]
    except InputError:
        return None


def read_all(places: Places) -> list[Record]:
    found = (read(places, key) for key in places.recorded())
    return [record for record in found if record is not None]


@contextlib.contextmanager
def locked(places: Places) -> Iterator[int]:
    """One builder or remover at a time; the lock's descriptor, for children to hold it too."""
    descriptor = os.open(places.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another autosync has held {places.folder / 'lock'} for {LOCK_SECONDS:g} s"
                    raise OperationError(message) from None
                time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)
