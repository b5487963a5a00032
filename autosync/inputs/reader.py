"""Reads ranges of shards in requests of a given size, several at a time."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from autosync.inputs.block_cache import cache_of
from autosync.inputs.meter import METER, ReadTotals
from autosync.inputs.storage import ShardFile
from autosync.right_of_way import marks
from autosync.specs.input_settings import InputSettings


class ByteRange(NamedTuple):
    """Bytes of a file."""

    file: ShardFile
    start: int
    length: int


class ShardReader:
    """Reads ranges under input settings. Its threads start when they are first needed, after a fork again."""

    def __init__(self, settings: InputSettings) -> None:
        self._settings = settings
        self._cache = cache_of(settings)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in order. The first failure is raised, and requests that wait are dropped."""
        began = time.perf_counter()
        # With a cache, requests are whole blocks: ranges differ from epoch to epoch, blocks do not.
        requests = [self._blocks(one) if self._cache is not None else self._pieces(one) for one in ranges]
        flat = [request for one in requests for request in one]
        answers = iter(self._all(flat))
        results = []
        for wanted, asked in zip(ranges, requests, strict=True):
            data = b"".join([next(answers) for _ in asked])
            skipped = wanted.start - asked[0].start if asked else 0
            is_whole = skipped == 0 and len(data) == wanted.length
            results.append(data if is_whole else data[skipped : skipped + wanted.length])
        METER.add_wait(time.perf_counter() - began)
        return results

    def _pieces(self, wanted: ByteRange) -> list[ByteRange]:
        size, end = self._settings.read_bytes, wanted.start + wanted.length
        return [ByteRange(wanted.file, at, min(size, end - at)) for at in range(wanted.start, end, size)]

    def _blocks(self, wanted: ByteRange) -> list[ByteRange]:
        size, end = self._settings.read_bytes, wanted.start + wanted.length
        first = wanted.start - wanted.start % size
        return [
            ByteRange(wanted.file, at, min(size, wanted.file.num_bytes - at))
            for at in range(first, end, size)
            if wanted.length
        ]

    def _all(self, requests: Sequence[ByteRange]) -> list[bytes]:
        if self._settings.read_concurrency == 1 or len(requests) <= 1:
            return [self._one(request) for request in requests]
        pending = [self._pool().submit(self._one, request) for request in requests]
        try:
            return [one.result() for one in pending]
        except BaseException:
            for one in pending:
                one.cancel()
            raise

    def _one(self, request: ByteRange) -> bytes:
        file, start, length = request
        key = f"{file.identity} {start} {length}" if self._cache is not None else ""
        if self._cache is not None and (kept := self._cache.get(key)) is not None:
            return kept
        if self._settings.right_of_way == "gradients":
            marks().give_way()
        began = time.perf_counter()
        data, num_retries = file.read(start, length)
        seconds = time.perf_counter() - began
        METER.add(
            file.host,
            ReadTotals(num_bytes=length, num_requests=1, num_retries=num_retries, request_seconds=seconds),
        )
        if self._cache is not None:
            self._cache.put(key, data)
        return data

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None or self._threads[0] != os.getpid():
            pool = ThreadPoolExecutor(self._settings.read_concurrency, thread_name_prefix="autosync-read")
            self._threads = os.getpid(), pool
        return self._threads[1]

    def close(self) -> None:
        """End the threads. The reader may be used again."""
        if self._threads is not None and self._threads[0] == os.getpid():
            self._threads[1].shutdown(cancel_futures=True)
        self._threads = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_threads": None}


class ShardStream(io.RawIOBase):
    """A file as a stream that can seek, for code that reads files: each read is one request of the reader."""

    def __init__(self, file: ShardFile, reader: ShardReader) -> None:
        super().__init__()
        self._file = file
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.num_bytes}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._file.num_bytes - self._position)
        if length <= 0:
            return 0
        (data,) = self._reader.read([ByteRange(self._file, self._position, length)])
        buffer[:length] = data
        self._position += length
        return length
