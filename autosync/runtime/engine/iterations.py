"""Counts the remaining waits of the items of each iteration, and tells when an item is ready. Pure, and free of torch.

Iterations overlap: the next one is opened while items of earlier ones are still under way, and an item may wait for an
item of an earlier iteration. The caller holds one lock during all calls, and callbacks run with it held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autosync.errors import OperationError
from autosync.runtime.engine.rank_script import Script


class Iteration:
    """One iteration: the remaining waits of each item, and the items that are done."""

    __slots__ = ("done", "num_left", "number", "released", "unmet")

    def __init__(self, number: int, script: Script) -> None:
        self.number = number
        self.unmet = list(script.num_waits)
        self.released = bytearray(script.num_items)
        self.done = bytearray(script.num_items)
        # The number of operations left, by how many iterations late they may be.
        self.num_left = [0] * (1 + max(script.lateness, default=0))
        for lateness in script.lateness:
            self.num_left[lateness] += 1


class Iterations:
    """The iterations that are not done, and those that later iterations may still ask about.

    `on_ready` is called with every operation that can be done now. `on_progress` is called when something has happened
    that the training thread may wait for: a gate has opened, an item of `awaited` is done, or the last operation of an
    iteration with the same lateness is done.
    """

    def __init__(
        self, script: Script, *, on_ready: Callable[[Iteration, int], None], on_progress: Callable[[], None]
    ) -> None:
        self._script = script
        self._on_ready = on_ready
        self._on_progress = on_progress
        self._kept: dict[int, Iteration] = {}
        self._longest_lag = max(1, script.longest_lag)
        self.number = -1
        self.awaited: set[int] = set()

    @property
    def current(self) -> Iteration:
        """The open iteration."""
        return self._kept[self.number]

    def find(self, number: int) -> Iteration | None:
        """Return an iteration by its number, or None if it is not kept."""
        return self._kept.get(number)

    def restart(self, number: int) -> None:
        """Drop all iterations, and let this one be opened next."""
        self._kept.clear()
        self.number = number - 1

    def open(self, reached: Iterable[int]) -> None:
        """Open the next iteration. `reached` has the iteration that each lane has reached."""
        self.number += 1
        script, current = self._script, Iteration(self.number, self._script)
        for item, links in enumerate(script.earlier):
            for link in links:
                before = self._kept.get(self.number - link.lag)
                if before is not None and not before.done[link.item]:
                    current.unmet[item] += 1
        first_reached = min(reached, default=self.number)
        for one in [one for one in self._kept.values() if not self._is_needed(one, first_reached)]:
            del self._kept[one.number]
        self._kept[self.number] = current
        idle = [item for item, every in enumerate(script.every) if (self.number + 1) % every]
        for item in idle:
            current.released[item] = 1
        for item in idle:
            self.settle(current, item)
        for item in range(script.num_items):
            if current.unmet[item] == 0:
                self._release(current, item)

    def happen(self, items: Iterable[int]) -> None:
        """Count down items of the open iteration, because something that they wait for has happened in training."""
        current = self.current
        for item in items:
            self._count_down(current, item)

    def settle(self, iteration: Iteration, item: int) -> None:
        """Mark an item as done, and count down the items that wait for it."""
        if iteration.done[item]:
            return
        iteration.done[item] = 1
        if item in self.awaited:
            self._on_progress()
        if item < len(self._script.operations):
            lateness = self._script.lateness[item]
            iteration.num_left[lateness] -= 1
            if iteration.num_left[lateness] == 0:
                self._on_progress()
        for follower, lag in self._script.followers[item]:
            later = iteration if lag == 0 else self._kept.get(iteration.number + lag)
            if later is not None:
                self._count_down(later, follower)

    def are_done(self, last: int) -> bool:
        """Whether all operations up to an iteration are done."""
        return not any(any(one.num_left) for number, one in self._kept.items() if number <= last)

    def are_due_done(self, last: int) -> bool:
        """Whether all operations that are due in an iteration are done: see `Script.lateness`."""
        return not any(
            last - number >= lateness and num_left
            for number, one in self._kept.items()
            for lateness, num_left in enumerate(one.num_left)
        )

    def _is_needed(self, iteration: Iteration, first_reached: int) -> bool:
        is_recent = self.number - iteration.number <= self._longest_lag
        return any(iteration.num_left) or is_recent or iteration.number >= first_reached

    def _count_down(self, iteration: Iteration, item: int) -> None:
        if iteration.unmet[item] == 0:
            raise OperationError(
                f"a gradient or a call of step {iteration.number} was reported twice, and what waited for it has begun "
                "(end all ranks and start again from a checkpoint)"
            )
        iteration.unmet[item] -= 1
        if iteration.unmet[item] == 0:
            self._release(iteration, item)

    def _release(self, iteration: Iteration, item: int) -> None:
        """Handle an item that is ready: report a gate, mark the user's own work as done, or give out an operation."""
        if iteration.released[item]:
            return
        iteration.released[item] = 1
        if item >= len(self._script.operations):
            self._on_progress()
        elif item in self._script.instant:
            self.settle(iteration, item)
        else:
            self._on_ready(iteration, item)
