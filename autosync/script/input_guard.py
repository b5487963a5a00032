"""Refuses a script whose training would differ under the bundle's input settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils.data import get_worker_info

from autosync.errors import OperationError
from autosync.script.own_state import changed_state, own_state
from autosync.script.random_states import RandomStates
from autosync.script.worker_questions import worker_questions

REMEDY = "leave `input` out of the bundle's strategy"


class InputChangesError(OperationError):
    """Other input settings would change what a script trains on.

    torch raises an error of a worker again with its traceback as the message. Only the last line of it is ours.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rsplit(f"{InputChangesError.__name__}: ", 1)[-1].strip())


class ExampleGuard:
    """Refuses a batch if its examples may depend on the number of workers. Each worker has a copy.

    They may if making them draws random numbers, asks which worker this is, or changes what the dataset remembers.
    """

    def __init__(self, dataset: object, collate: Callable[[Any], Any], change: str) -> None:
        self._dataset, self._collate = dataset, collate
        self._change = change
        self._states: RandomStates | None = None
        self._before: list[Any] = []
        self._own: dict[str, Any] = {}
        self._num_questions = 0

    def begin(self) -> None:
        """Remember the states of this process: all that follows is work on examples."""
        # Here, in the process that makes the batches: a dataset may make its generators in its workers.
        self._states = self._states or RandomStates(self._dataset, self._collate)
        self._before = self._states.now()
        self._own = own_state(self._dataset)
        self._num_questions = worker_questions().count

    def check(self) -> None:
        """Raise if examples since the last call of this object may depend on the number of workers."""
        assert self._states is not None, "it has begun"
        if self._states.now() != self._before:
            self._refuse("draws random numbers, and these depend on the number of workers")
        if worker_questions().count != self._num_questions:
            self._refuse("asks which worker makes an example (get_worker_info), and others would")
        before, self._own = self._own, own_state(self._dataset)
        changed = changed_state(before, self._own)
        if changed is not None:
            self._refuse(f"changes itself while it makes examples ({changed}), and each worker has a copy of its own")

    def start_worker(self, own: Callable[[int], None], worker: int) -> None:
        """Call the script's own function that prepares a worker; it must not change what the dataset remembers."""
        info = get_worker_info()
        assert info is not None, "it is called in a worker"
        before = own_state(info.dataset)
        own(worker)
        changed = changed_state(before, own_state(info.dataset))
        if changed is not None:
            self._refuse(f"is changed for each worker by worker_init_fn ({changed}), and the workers are others")

    def _refuse(self, reason: str) -> NoReturn:
        raise InputChangesError(f"the dataset {reason}: {self._change} ({REMEDY})")


class GuardedStart:
    """Prepares a worker: as the script does, then the threads. With as many workers as before, the script is free."""

    def __init__(
        self, own: Callable[[int], None] | None, num_threads: int, guard: ExampleGuard, *, is_guarded: bool
    ) -> None:
        self._own = own
        self._num_threads = num_threads
        self._guard = guard
        self._is_guarded = is_guarded

    def __call__(self, worker: int) -> None:
        if self._own is not None and self._is_guarded:
            self._guard.start_worker(self._own, worker)
        elif self._own is not None:
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
