"""The parts of a plan that travel in an iteration. The others stay: no rank is predicted to use their variables.

A session says at the beginning of an iteration's gradients that it has begun. When the ranks have agreed, it says which
variables stay, and the engine's threads, which may already wait, learn it from here. Gradients of variables that stay
may come nevertheless. The session adds them up itself when backward has ended. Where the engine updates, the rest of
their operations then takes place: only their gradients' transfers are left out, because their sums are there.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from autosync.errors import OperationError
from autosync.plan.types import Operation, Plan, Transfer

_NUM_KEPT = 4
_NONE: frozenset[int] = frozenset()


class _Iteration:
    """The parts that stay in one iteration, by position, and those of them whose gradients came late."""

    __slots__ = ("agreed", "decided", "late", "staying")

    def __init__(self) -> None:
        self.agreed = threading.Event()
        self.decided = threading.Event()
        self.staying = _NONE
        self.late = _NONE


class Travelling:
    """Tells the engine's threads which regions of an operation take part in an iteration.

    `names` are the variables that may stay. No wait is longer than `timeout_seconds`.
    """

    def __init__(self, plan: Plan, names: Collection[str], *, timeout_seconds: float) -> None:
        self._plan = plan
        self._timeout_seconds = timeout_seconds
        self._parts: dict[str, frozenset[int]] = {
            name: frozenset(i for i, part in enumerate(plan.parts) if part.variable.name == name) for name in names
        }
        parts = frozenset().union(*self._parts.values())
        self._may_stay = [any(plan.regions[index].part in parts for index in _regions(one)) for one in plan.operations]
        self._iterations: dict[int, _Iteration] = {}
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    # Called by the session.

    def agree(self, iteration: int, staying: Collection[str]) -> None:
        """State which variables stay in an iteration."""
        found = self._of(iteration)
        found.staying = self._positions(staying)
        found.agreed.set()

    def decide(self, iteration: int, late: Collection[str]) -> None:
        """State which of the variables that stay have got a gradient nevertheless; their sums are in memory."""
        found = self._of(iteration)
        found.late = self._positions(late)
        found.decided.set()
        with self._lock:
            for number in [number for number in self._iterations if number <= iteration - _NUM_KEPT]:
                del self._iterations[number]

    def fail(self, error: BaseException) -> None:
        """End all waits with an error, because the ranks could not agree."""
        with self._lock:
            self._failure = error
            found = list(self._iterations.values())
        for one in found:
            one.agreed.set()
            one.decided.set()

    def forget(self) -> None:
        """Drop all iterations, because their numbers will be used again."""
        with self._lock:
            self._iterations.clear()

    # Called by the engine's threads.

    def is_known(self, index: int, iteration: int) -> bool:
        """Whether `moving` returns at once."""
        if not self._may_stay[index]:
            return True
        found = self._of(iteration)
        if not found.agreed.is_set():
            return False
        return found.decided.is_set() or not self._moves_parameters(index) or not self._stays(found, index)

    def moving(self, index: int, iteration: int) -> tuple[int, ...]:
        """Return the regions with which a transfer (by its position in the plan) takes place; wait until it is known.

        Parameters travel although their gradients did not, if these came late.
        """
        transfer = self._plan.operations[index]
        assert isinstance(transfer, Transfer), "local operations have no regions that move"
        if not self._may_stay[index]:
            return transfer.regions
        found = self._wait(iteration, index)
        staying = found.staying - found.late if self._moves_parameters(index) else found.staying
        if not staying:
            return transfer.regions
        return tuple(one for one in transfer.regions if self._plan.regions[one].part not in staying)

    def resting(self, index: int, iteration: int) -> frozenset[int]:
        """Return the parts with which a local operation does not take place."""
        if not self._may_stay[index]:
            return _NONE
        found = self._wait(iteration, index)
        return found.staying - found.late

    def _wait(self, iteration: int, index: int) -> _Iteration:
        found = self._of(iteration)
        is_known = found.agreed.wait(self._timeout_seconds)
        if is_known and self._failure is None and self._moves_parameters(index) and self._stays(found, index):
            is_known = found.decided.wait(self._timeout_seconds)
        if self._failure is not None:
            raise OperationError(f"which gradients travel: {self._failure}") from self._failure
        if not is_known:
            raise OperationError(f"which gradients travel: no answer within {self._timeout_seconds:g} s")
        return found

    def _stays(self, found: _Iteration, index: int) -> bool:
        return any(self._plan.regions[one].part in found.staying for one in _regions(self._plan.operations[index]))

    def _moves_parameters(self, index: int) -> bool:
        operation = self._plan.operations[index]
        return isinstance(operation, Transfer) and self._plan.regions[operation.regions[0]].kind == "param"

    def _of(self, iteration: int) -> _Iteration:
        found = self._iterations.get(iteration)
        if found is None:
            with self._lock:
                found = self._iterations.setdefault(iteration, _Iteration())
                if self._failure is not None:
                    found.agreed.set()
                    found.decided.set()
        return found

    def _positions(self, names: Collection[str]) -> frozenset[int]:
        return frozenset(part for name in names for part in self._parts[name])


def _regions(operation: Operation) -> tuple[int, ...]:
    return operation.regions if isinstance(operation, Transfer) else (*operation.inputs, *operation.outputs)
