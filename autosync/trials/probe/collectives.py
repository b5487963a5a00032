"""Times what all workers do together (all-reduces by algorithm and size, mixed steps), and a fixed computation."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync.plan.expansion import Move, chunk_bounds, expand
from autosync.plan.types import NamedAlgorithm
from autosync.trials.probe.request import CollectiveSamples

ALGORITHMS: tuple[NamedAlgorithm, ...] = ("native", "ring", "tree", "halving_doubling")
MAX_REPEATS, _LEAST_REPEATS = 9, 2
# Small all-reduces are too short to be timed precisely: several in a row are timed as one.
_SMALL_BYTES, _SMALL_RUN = 65536, 8
_STEP_BYTES = (10_000, 1_000_000)
_MATRIX, _NUM_PRODUCTS = 192, 12


class Workers:
    """The worker ranks of the cluster, including this rank, with their own process group."""

    def __init__(self, members: Sequence[int], group: Any, rank: int, timeout_seconds: float) -> None:
        self._members = tuple(members)
        self._group = group
        self._me = self._members.index(rank)
        self._timeout = dt.timedelta(seconds=timeout_seconds)
        # The seconds of a byte in the last all-reduce of each algorithm, the same on all ranks.
        self._byte_seconds: dict[str, float] = {}

    def takes(self, algorithm: NamedAlgorithm, num_bytes: int) -> float:
        """Return the seconds that a point will take at least, by the point before it, or 0 without one."""
        return (1 + _LEAST_REPEATS) * _run_of(num_bytes) * num_bytes * self._byte_seconds.get(algorithm, 0.0)

    def measure(self, algorithm: NamedAlgorithm, num_bytes: int, point_seconds: float) -> CollectiveSamples:
        """Time an all-reduce as often as fits in `point_seconds`; the first tells all ranks how often that is."""
        buffer = torch.zeros(max(1, num_bytes // 4))
        run = _run_of(num_bytes)
        first = self._slowest(self._once(algorithm, buffer, run))
        repeats = min(MAX_REPEATS, max(_LEAST_REPEATS, int(point_seconds / max(first * run, 1e-6))))
        taken = [self._once(algorithm, buffer, run) for _ in range(repeats)]
        self._byte_seconds[algorithm] = self._slowest(min(taken)) / num_bytes
        return CollectiveSamples(algorithm=algorithm, num_bytes=num_bytes, seconds=tuple(taken))

    def steps(self, count: int, pause_seconds: float) -> tuple[float, ...]:
        """Time steps that resemble training steps: a pause for compute, then a small and a large all-reduce."""
        small, large = (torch.zeros(num_bytes // 4) for num_bytes in _STEP_BYTES)

        def step() -> None:
            time.sleep(pause_seconds)
            dist.all_reduce(small, group=self._group)
            dist.all_reduce(large, group=self._group)

        # The first three steps do not count.
        return tuple(_timed(step) for _ in range(count + 3))[3:]

    def _slowest(self, seconds: float) -> float:
        """Return the longest time of all ranks."""
        longest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._group)
        return longest.item()

    def _once(self, algorithm: NamedAlgorithm, buffer: torch.Tensor, run: int) -> float:
        dist.barrier(self._group)

        def repeat() -> None:
            for _ in range(run):
                self._all_reduce(algorithm, buffer)

        return _timed(repeat) / run

    def _all_reduce(self, algorithm: NamedAlgorithm, buffer: torch.Tensor) -> None:
        if algorithm == "native":
            dist.all_reduce(buffer, group=self._group)
            return
        bounds = chunk_bounds(len(buffer), len(self._members))
        moves = expand("all_reduce", algorithm, len(self._members))
        mine = (move for move in moves if self._me in (move.source, move.destination))
        for _, together in itertools.groupby(mine, key=lambda move: move.round):
            self._round(list(together), buffer, bounds)

    def _round(self, moves: Sequence[Move], buffer: torch.Tensor, bounds: tuple[int, ...]) -> None:
        """Start all messages of a round, then wait for them, as the runtime does."""
        sends: list[Any] = []
        arrivals: list[tuple[torch.Tensor, torch.Tensor, Any, bool]] = []
        for move in moves:
            chunk = buffer[bounds[move.first] : bounds[move.last]]
            if not len(chunk):
                continue
            if move.source == self._me:
                sends.append(dist.isend(chunk.clone(), self._members[move.destination]))
            else:
                arriving = torch.empty_like(chunk)
                arrivals.append((chunk, arriving, dist.irecv(arriving, self._members[move.source]), move.adds))
        for chunk, arriving, work, adds in arrivals:
            work.wait(self._timeout)
            if adds:
                chunk.add_(arriving)
            else:
                chunk.copy_(arriving)
        for work in sends:
            work.wait(self._timeout)


def _run_of(num_bytes: int) -> int:
    """Return how many all-reduces in a row are timed as one."""
    return _SMALL_RUN if num_bytes <= _SMALL_BYTES else 1


def compute(count: int) -> tuple[float, ...]:
    """Time a small fixed computation `count` times, after two runs that do not count."""
    matrix = torch.ones(_MATRIX, _MATRIX) / _MATRIX

    def work() -> None:
        product = matrix
        for _ in range(_NUM_PRODUCTS):
            product = product @ matrix

    return tuple(_timed(work) for _ in range(count + 2))[2:]


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
