"""A rank of a test of connections: its links, its time limits, and values that it sends."""

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autosync.runtime.wire.links import Links

# Longer than any test takes where all goes well. The cases in which a peer fails have limits of their own.
LIMIT = dt.timedelta(seconds=30)
SHORT = dt.timedelta(seconds=2)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.uint8)


class Here:
    """Where a case runs: on this rank, with the store that all ranks share."""

    def __init__(self, store: Any, rank: int, num_ranks: int) -> None:
        self.store = store
        self.rank = rank
        self.num_ranks = num_ranks
        self.everyone = tuple(range(num_ranks))

    def links(self, name: str, timeout: dt.timedelta = LIMIT) -> Links:
        hosts = [f"host-{rank}" for rank in self.everyone]
        store = dist.PrefixStore(name, self.store)
        return Links(store, rank=self.rank, num_ranks=self.num_ranks, timeout=timeout, hosts=hosts)


def in_threads(*works: Callable[[], None]) -> None:
    """Run all at once; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)

    running = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def values(rank: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, which every type adds up exactly, in any order."""
    return ((torch.arange(size) * (rank + 2) + salt) % 13).to(dtype)


def total(num_ranks: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    return sum((values(rank, size, dtype, salt) for rank in range(1, num_ranks)), values(0, size, dtype, salt))
