"""Ranks of a loop as threads of this process: messages go through queues."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from autosync.loops.checkpoints import Checkpoints
from autosync.loops.declarations import SerialLoop
from autosync.loops.rank_program import LoopResult, run_first, run_other
from autosync.loops.rank_run import LoopSettings

LIMIT_SECONDS = 60
T = TypeVar("T")


class ThreadPeers:
    """One rank of several threads. A message is copied when it is sent."""

    def __init__(self, rank: int, num_ranks: int, queues: dict[tuple[int, int, int], queue.Queue[Any]]) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._queues = queues

    def post_send(self, array: np.ndarray, to: int, tag: int) -> Sent:
        self._queues[self.rank, to, tag].put(array.copy())
        return Sent()

    def post_receive(self, array: np.ndarray, source: int, tag: int) -> Arriving:
        return Arriving(self._queues[source, self.rank, tag], array)


class Sent:
    """A message that is sent already."""

    def wait(self) -> None:
        return


class Arriving:
    """A message that is taken when somebody waits for it."""

    def __init__(self, source: queue.Queue[Any], array: np.ndarray) -> None:
        self._source = source
        self._array = array

    def wait(self) -> None:
        data = self._source.get(timeout=LIMIT_SECONDS)
        assert data.nbytes == self._array.nbytes
        self._array.reshape(-1).view(np.uint8)[:] = data.reshape(-1).view(np.uint8)


class _Queues(defaultdict[tuple[int, int, int], "queue.Queue[Any]"]):
    """Queues that two threads may ask for at the same time."""

    def __init__(self) -> None:
        super().__init__(queue.Queue)
        self._lock = threading.Lock()

    def __getitem__(self, key: tuple[int, int, int]) -> queue.Queue[Any]:
        with self._lock:
            return super().__getitem__(key)


def run_threads(
    loop: SerialLoop, num_ranks: int, settings: LoopSettings | None = None, *, checkpoints: Checkpoints | None = None
) -> LoopResult:
    """The result of rank 0; an error of any rank is raised here."""
    told = settings or LoopSettings(compiled=False)
    return run_ranks(loop, num_ranks, lambda peers: run_first(peers, loop, told, checkpoints=checkpoints))


def run_ranks(loop: SerialLoop, num_ranks: int, first: Callable[[ThreadPeers], T]) -> T:
    """The result of `first` on rank 0, beside threads for the other ranks. An error of any rank is raised here."""
    queues = _Queues()
    errors: list[BaseException] = []

    def other(rank: int) -> None:
        try:
            run_other(ThreadPeers(rank, num_ranks, queues), loop)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            errors.append(error)

    threads = [threading.Thread(target=other, args=(rank,), daemon=True) for rank in range(1, num_ranks)]
    for thread in threads:
        thread.start()
    result = first(ThreadPeers(0, num_ranks, queues))
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
    assert not any(one.qsize() for one in queues.values()), "a message was not received"
    return result
