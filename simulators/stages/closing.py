"""Plays what ranks do after their passes: sums of gradients, and norms where the task clips, in the plan's order.

A rank begins when its last pass is over, and a sum when all its ranks have come so far. Its bytes then travel together
with those of passes that other ranks still wait for, and share links with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from autosync.plan.outline import outline
from autosync.plan.types import Local, Plan, Transfer
from autosync.simulators.stages.fluid_links import FluidLinks
from autosync.simulators.stages.stage_links import StageLinks, parts_of_sum
from autosync.specs.costs import Costs


class _Work(NamedTuple):
    """Work of some ranks, which begin it together: bytes from one to another, and `seconds` beside them."""

    ranks: tuple[int, ...]
    seconds: float
    sends: tuple[tuple[int, int, int], ...] = ()


class ClosingWork:
    """The work after passes, by its number. Its flows have keys from `first_key` on, and all others smaller ones.

    Each event gives the ends, with their numbers, of the work whose end is known from then on.
    """

    def __init__(self, plan: Plan, network: StageLinks, links: FluidLinks, costs: Costs, *, first_key: int) -> None:
        self._network = network
        self._links = links
        self._work = list(_work_of(plan, costs))
        self._queues: dict[int, deque[int]] = {rank: deque() for rank in range(len(plan.ranks))}
        for number, one in enumerate(self._work):
            for rank in one.ranks:
                self._queues[rank].append(number)
        self._first_key = first_key
        # The work of each flow, and how many flows each work has left since it began.
        self._flows: list[int] = []
        self._num_left: dict[int, int] = {}
        self.free: dict[int, float] = {}
        """The ranks whose passes are over, and since when each has had nothing to do."""

    def come(self, rank: int, now: float) -> list[tuple[float, int]]:
        """The passes of a rank are over."""
        self.free[rank] = now
        return self._begin(rank, now)

    def arrive(self, key: int, now: float) -> list[tuple[float, int]]:
        """A flow has ended; with the last one of some work, the rest of this is known."""
        number = self._flows[key - self._first_key]
        self._num_left[number] -= 1
        return [] if self._num_left[number] else [(now + self._work[number].seconds, number)]

    def end(self, number: int, now: float) -> list[tuple[float, int]]:
        """End work, and begin what its ranks do then."""
        ranks = self._work[number].ranks
        for rank in ranks:
            self._queues[rank].popleft()
            self.free[rank] = now
        return [found for rank in ranks for found in self._begin(rank, now)]

    def _begin(self, rank: int, now: float) -> list[tuple[float, int]]:
        """Begin the next work of a rank, if all others of that work have come to it."""
        if not self._queues[rank]:
            return []
        number = self._queues[rank][0]
        one = self._work[number]
        waits = any(other not in self.free or self._queues[other][0] != number for other in one.ranks)
        if waits or number in self._num_left:
            return []
        self._num_left[number] = len(one.sends)
        for source, destination, num_bytes in one.sends:
            way = self._network.way(source, destination)
            key = self._first_key + len(self._flows)
            self._flows.append(number)
            self._links.begin(key, num_bytes, way, now, limit=self._network.flow_limit(way))
        return [] if one.sends else [(now + one.seconds, number)]


def _work_of(plan: Plan, costs: Costs) -> Iterator[_Work]:
    for one in plan.operations:
        if isinstance(one, Local) and one.kind == "norm":
            for rank in one.groups[0]:
                yield _Work((rank,), one.num_elements / len(one.groups[0]) / costs.local_rate("norm"))
        elif isinstance(one, Transfer) and one.message >= 0:
            for group in one.groups:
                parts = parts_of_sum(one, group)
                for sent in parts:
                    sends = tuple((*ends, num_bytes) for ends, num_bytes in sent.items() if num_bytes)
                    yield _Work(group, rounds_seconds(one, costs) / len(parts), sends)


def rounds_seconds(transfer: Transfer, costs: Costs) -> float:
    """Return what a transfer takes beside its bytes."""
    num_rounds = outline(transfer.collective, transfer.algorithm, len(transfer.groups[0])).num_rounds
    return num_rounds * costs.round_seconds + costs.transfer_seconds
