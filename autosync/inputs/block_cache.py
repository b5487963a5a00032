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
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from autosync.errors import InputError
from autosync.specs.input_settings import InputSettings

_CHECKSUM_BYTES = 4
_KEPT_SHARE = 0.9
"""A full cache on disk is emptied to this share of its limit, so that not every new block looks for an old one."""


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
    """Blocks in files of a folder, which several processes share. A lock makes the limit hold for all together."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
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
        temporary = self._folder / f"new-{secrets.token_hex(8)}"
        # A full disk is no reason to stop training: the block is read again next time.
        with contextlib.suppress(OSError), self._locked():
            self._make_room(num_bytes)
            try:
                temporary.write_bytes(_checksum(block) + block)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def _make_room(self, num_bytes: int) -> None:
        """Remove the blocks that were used least recently, if the limit asks for it. The lock is held."""
        found = []
        for entry in os.scandir(self._folder):
            # No other process is writing, because the lock is held: an unfinished file is a crash's.
            if entry.name.startswith("new-"):
                Path(entry.path).unlink(missing_ok=True)
            elif entry.name.startswith("block-"):
                facts = entry.stat()
                found.append((facts.st_mtime_ns, facts.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total + num_bytes <= self._limit_bytes:
            return
        for _, size, place in sorted(found):
            Path(place).unlink(missing_ok=True)
            total -= size
            if total + num_bytes <= _KEPT_SHARE * self._limit_bytes:
                return

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, key: str) -> Path:
        return self._folder / f"block-{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _checksum(block: bytes) -> bytes:
    return zlib.crc32(block).to_bytes(_CHECKSUM_BYTES, "big")
