"""Hands out the engine's work: the interface for carrying out operations, and the next transfers of a lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from autosync.runtime.engine.iterations import Iteration


class Work(Protocol):
    """Carries out operations: the engine's threads call it with the position in the plan and the iteration.

    Each call of `following` returns one more of the lane's next transfers in this iteration, or None while that
    transfer still waits for something besides its turn. It never goes past a transfer that `waits_its_turn`. `heard_at`
    returns when a message was last sent or received (of `time.perf_counter`). `abort` makes every wait for other ranks
    end with an error.
    """

    def begin_thread(self) -> None: ...
    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None: ...
    def waits_its_turn(self, operation: int, iteration: int) -> bool: ...
    def local(self, operation: int, iteration: int) -> None: ...
    def heard_at(self) -> float: ...
    def abort(self) -> None: ...


class FollowingTransfers:
    """Returns a lane's items from a place on, one with each call, as far as they are ready before their turn.

    Counters are read without their lock: an item that is ready stays ready, and others are returned by a later call.
    """

    def __init__(
        self, work: Work, operations: Sequence[int], items: Sequence[int], place: int, iteration: Iteration
    ) -> None:
        self._work = work
        self._operations = operations
        self._items = items
        self._iteration = iteration
        self.place = place

    def __call__(self) -> int | None:
        """Return the position in the plan of the next operation, or None while that is not ready."""
        iteration, items = self._iteration, self._items
        while self.place < len(items) and iteration.done[items[self.place]]:
            self.place += 1
        if self.place == len(items) or iteration.unmet[items[self.place]] > 0:
            return None
        operation = self._operations[items[self.place]]
        if self._work.waits_its_turn(operation, iteration.number):
            return None
        self.place += 1
        return operation
