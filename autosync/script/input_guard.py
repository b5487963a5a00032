"""Refuses a script whose training would differ under the bundle's input settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.script.random_states import RandomStates

_REMEDY = "leave `input` out of the bundle's strategy"


class InputChangesError(OperationError):
    """Other input settings would change what a script trains on.

    torch raises an error of a worker again with its traceback as the message. Only the last line of it is ours.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f"{InputChangesError.__name__}: ", 1)[-1].strip())


class ExampleGuard:
    """Refuses a batch if making it has drawn random numbers. Each worker has a copy."""

    def __init__(self, dataset: object, collate: Callable[[Any], Any], change: str) -> None:
        self._holders = (dataset, collate)
        self._change = change
        self._states: RandomStates | None = None
        self._before: list[Any] = []

    def begin(self) -> None:
        """Remember the states of this process: all that follows is work on examples."""
        # Here, in the process that makes the batches: a dataset may make its generators in its workers.
        self._states = self._states or RandomStates(*self._holders)
        self._before = self._states.now()

    def check(self) -> None:
        """Raise if random numbers were drawn since the last call of this object."""
        assert self._states is not None, "it has begun"
        now = self._states.now()
        if now != self._before:
            raise InputChangesError(
                f"the dataset draws random numbers, and these depend on the number of workers: {self._change} "
                f"({_REMEDY})"
            )


class GuardedStart:
    """Prepares a worker: as the script does, then the threads."""

    def __init__(self, own: Callable[[int], None] | None, num_threads: int, guard: ExampleGuard) -> None:
        self._own = own
        self._num_threads = num_threads
        self._guard = guard

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        torch.set_num_threads(self._num_threads)
        self._guard.begin()


class GuardedCollate:
    """The collate function of the script, and a check of the batch."""

    def __init__(self, own: Callable[[Any], Any], guard: ExampleGuard) -> None:
        self._own = own
        self._guard = guard

    def __call__(self, examples: Any) -> Any:
        batch = self._own(examples)
        self._guard.check()
        return batch


class WatchedBatches:
    """The script's sampler. It is asked for batches earlier or later than without the bundle's settings.

    So it must not draw random numbers once the first batch is known, and if the script has no workers, the script must
    not change its dataset while workers with copies of it make batches.
    """

    def __init__(
        self, own: Any, dataset: object, generator: object, *, change: str, is_copied: bool, begins: Callable[[], None]
    ) -> None:
        self._own = own
        self._dataset = dataset
        self._states = RandomStates(own, generator)
        self._change = change
        self._is_copied = is_copied
        self._begins = begins

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        batches, is_first = iter(self._own), True
        copied = _attributes(self._dataset)
        while True:
            before = self._states.now()
            try:
                batch = next(batches)
            except StopIteration:
                return
            if not is_first and self._states.now() != before:
                raise InputChangesError(
                    f"the sampler draws random numbers between batches, earlier or later than with the script's "
                    f"settings: {self._change} ({_REMEDY})"
                )
            changed = next((name for name, one in _attributes(self._dataset).items() if copied.get(name) != one), None)
            if self._is_copied and changed is not None:
                raise InputChangesError(
                    f"the script changes its dataset ({changed}) while it reads it, and workers would not see that: "
                    f"{self._change} ({_REMEDY})"
                )
            is_first = False
            self._begins()
            yield batch


def _attributes(dataset: object) -> dict[str, int]:
    """Return which objects the attributes of a dataset are, with those of the datasets that it wraps."""
    found: dict[str, int] = {}
    prefix, seen = "", set[int]()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        held = getattr(dataset, "__dict__", {})
        found |= {f"{prefix}{name}": id(value) for name, value in held.items()}
        prefix, dataset = f"{prefix}dataset.", held.get("dataset")
    return found
