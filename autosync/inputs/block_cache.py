"""Keeps blocks of shards that were read, in memory or on disk, under a limit in bytes.

A cache may lose any block at any time: then the block is read again. It never gives a wrong one: a key has the file's
version, and blocks on disk have a checksum.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from autosync.errors import InputError
from autosync.specs.input_settings import InputSettings

_CHECKSUM_BYTES = 4
_KEPT_SHARE = 0.9
"""A full cache on disk is emptied to this share of its limit, so that not every new block looks for an old one."""
_LOCK_SECONDS = 0.05
_PAUSE_SECONDS = 1.0
"""A process that waited so long for the lock in vain keeps no blocks for so long."""
_UNFINISHED_SECONDS = 600.0
"""A block that took longer to write is one of a process that crashed."""


class BlockCache(Protocol):
    """Blocks by key. Threads may call it at the same time."""

    def get(self, key: str) -> bytes | None:
        """Return a block, or None if it is not kept."""

    def put(self, key: str, block: bytes) -> None:
        """Keep a block if the limit allows; the blocks that were used least recently make room."""


def cache_of(settings: InputSettings) -> BlockCache | None:
    """Return the cache of one process. Workers share a cache on disk, and divide the limit of a cache in memory."""
    if settings.cache == "memory":
        return MemoryBlocks(settings.cache_limit_bytes // max(settings.num_workers, 1))
    if settings.cache == "disk":
        return DiskBlocks(Path(settings.cache_folder), settings.cache_limit_bytes)
    return None


class MemoryBlocks:
    """Blocks in the memory of this process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[str, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: str) -> bytes | None:
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: str, block: bytes) -> None:
        with self._lock:
            if key in self._blocks or len(block) > self._limit_bytes:
                return
            self._blocks[key] = block
            self.num_bytes += len(block)
            while self.num_bytes > self._limit_bytes:
                _, dropped = self._blocks.popitem(last=False)
                self.num_bytes -= len(dropped)

    def __getstate__(self) -> dict[str, Any]:
        # Another process begins with an empty cache.
        return {"_limit_bytes": self._limit_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_limit_bytes"])  # type: ignore[misc]


class DiskBlocks:
    """Blocks in files of a folder, which several processes share. The limit holds for all together.

    A process reserves the room for a block before it writes it. The sum of what is reserved is in the lock's file. It
    is too large after a crash, and then blocks are counted when the cache seems to be full.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._keeps_from = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock_file.touch()
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror}", rule="the cache's folder can be written") from error

    @property
    def _lock_file(self) -> Path:
        return self._folder / "lock"

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        block = data[_CHECKSUM_BYTES:]
        if data[:_CHECKSUM_BYTES] != _checksum(block):
            # A crash or the disk damaged it.
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return block

    def put(self, key: str, block: bytes) -> None:
        num_bytes = len(block) + _CHECKSUM_BYTES
        path = self._path(key)
        if num_bytes > self._limit_bytes or path.exists():
            return
        temporary = self._folder / f"new-{num_bytes}-{secrets.token_hex(8)}"
        # A full disk is no reason to stop training: the block is read again next time.
        with contextlib.suppress(OSError):
            try:
                with self._locked() as file:
                    if file is None or not self._reserve(file, num_bytes):
                        return
                    temporary.touch()
                temporary.write_bytes(_checksum(block) + block)
                # With the lock, so that a block has one name while others count.
                with self._locked() as file:
                    if file is not None:
                        temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def _reserve(self, file: FileIO, num_bytes: int) -> bool:
        """Make room for a block, and note it in the lock's file; return whether there is room."""
        written = file.read()
        used = int(written) if written.isdigit() else self._limit_bytes
        if used + num_bytes > self._limit_bytes:
            used = self._make_room(num_bytes)
        has_room = used + num_bytes <= self._limit_bytes
        os.pwrite(file.fileno(), b"%020d" % (used + num_bytes if has_room else used), 0)
        return has_room

    @contextlib.contextmanager
    def _locked(self) -> Iterator[FileIO | None]:
        """Hold the lock, and give its file; None if others hold it for long.

        The process that holds it may be stopped, as workers of strategies are that wait for their turn.
        """
        if time.monotonic() < self._keeps_from:
            yield None
            return
        with self._lock_file.open("r+b", buffering=0) as file:
            if not _locks(file):
                self._keeps_from = time.monotonic() + _PAUSE_SECONDS
                yield None
                return
            try:
                yield file
            finally:
                # A fork in between has a copy of the file, and would hold the lock.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _make_room(self, num_bytes: int) -> int:
        """Remove the blocks that were used least recently, if the limit asks for it; return the bytes that are left.

        Blocks that are being written stay. If they leave no room, nothing is removed.
        """
        blocks, total, unfinished = [], 0, 0
        for entry in os.scandir(self._folder):
            kind, _, rest = entry.name.partition("-")
            with contextlib.suppress(OSError):
                if kind == "new" and time.time() - entry.stat().st_mtime > _UNFINISHED_SECONDS:
                    Path(entry.path).unlink()
                elif kind == "new":
                    unfinished += int(rest.partition("-")[0])
                elif kind == "block":
                    facts = entry.stat()
                    blocks.append((facts.st_mtime_ns, facts.st_size, entry.path))
                    total += facts.st_size
        total += unfinished
        if total + num_bytes <= self._limit_bytes or unfinished + num_bytes > self._limit_bytes:
            return total
        for _, size, place in sorted(blocks):
            Path(place).unlink(missing_ok=True)
            total -= size
            if total + num_bytes <= _KEPT_SHARE * self._limit_bytes:
                break
        return total

    def _path(self, key: str) -> Path:
        return self._folder / f"block-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _locks(file: FileIO) -> bool:
    """Lock a file, unless others hold the lock for longer than it takes to reserve room."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_SECONDS / 50)
        else:
            return True


def _checksum(block: bytes) -> bytes:
    return zlib.crc32(block).to_bytes(_CHECKSUM_BYTES, "big")
