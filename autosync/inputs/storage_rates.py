"""Measures what a storage delivers: bytes a second against the size of requests and their number at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from autosync.errors import InputError
from autosync.inputs.intervals import RateInterval, rate_interval
from autosync.inputs.storage import LocalFile, ShardFile

DEFAULT_SIZES = (2**16, 2**20, 2**23)
DEFAULT_CONCURRENCIES = (1, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRate:
    """The rate of one size and concurrency of requests, in bytes a second with its interval."""

    read_bytes: int
    read_concurrency: int
    rate: RateInterval
    request_seconds: float
    """The mean time of one request."""
    num_requests: int
    num_retries: int


def measure_storage(
    files: Sequence[ShardFile],
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    concurrencies: Sequence[int] = DEFAULT_CONCURRENCIES,
    seconds: float = 1.0,
    told: Callable[[StorageRate], None] = lambda _rate: None,
) -> tuple[StorageRate, ...]:
    """Return the rates of all combinations. Each reads the files from the start, again and again, for so long."""
    files = [file for file in files if file.num_bytes > 0]
    if not files or not sizes or not concurrencies or min(*sizes, *concurrencies) < 1 or not seconds > 0:
        raise InputError(
            f"{len(files)} files with content, sizes {list(sizes)}, concurrencies {list(concurrencies)}, {seconds} s",
            rule="a file that is not empty, and sizes, concurrencies and seconds above 0",
        )
    rates = []
    for size, concurrency in itertools.product(dict.fromkeys(sizes), dict.fromkeys(concurrencies)):
        for file in files:
            forget_cached(file)
        rates.append(_measured(files, size, concurrency, seconds))
        told(rates[-1])
    return tuple(rates)


def _measured(files: Sequence[ShardFile], size: int, concurrency: int, seconds: float) -> StorageRate:
    places = itertools.cycle(
        [(file, at, min(size, file.num_bytes - at)) for file in files for at in range(0, file.num_bytes, size)]
    )
    num_bytes: list[int] = []
    rounds: list[float] = []
    request_times: list[float] = []
    num_retries = 0
    began = last = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        # In rounds of as many requests as fly at a time; four of them, so that a slow one delays few others.
        while last - began < seconds or len(rounds) < 2:
            chosen = [next(places) for _ in range(4 * concurrency)]
            answers = list(pool.map(_timed, chosen))
            now = time.perf_counter()
            num_bytes.append(sum(length for _, _, length in chosen))
            rounds.append(now - last)
            request_times += [taken for taken, _ in answers]
            num_retries += sum(retries for _, retries in answers)
            last = now
    return StorageRate(
        read_bytes=size,
        read_concurrency=concurrency,
        rate=rate_interval(num_bytes, rounds),
        request_seconds=sum(request_times) / len(request_times),
        num_requests=len(request_times),
        num_retries=num_retries,
    )


def _timed(place: tuple[ShardFile, int, int]) -> tuple[float, int]:
    file, start, length = place
    began = time.perf_counter()
    _, num_retries = file.read(start, length)
    return time.perf_counter() - began, num_retries


def forget_cached(file: ShardFile) -> bool:
    """Ask the operating system to forget what it keeps of a local file. Return whether there was such a file."""
    if not isinstance(file, LocalFile):
        return False
    with contextlib.suppress(OSError):
        descriptor = os.open(file.url, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return True
    return False
