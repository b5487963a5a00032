"""The input of tasks that have a dataset: what a profile measures of it, and the batches of a rank in trials."""

from __future__ import annotations

import atexit
import ctypes
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from autosync.inputs.loader import InputLoader, loader
from autosync.inputs.many_workers import many_workers_allowed
from autosync.inputs.profiled_input import PROFILE_SECONDS, ProfiledInput, profile_input
from autosync.specs.dataset_batches import DatasetBatches
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.specs.task import Task
from autosync.specs.task_file import task_code

_SET_DEATH_SIGNAL = 1


def with_input(
    model: ModelSpec, task: Task, settings: InputSettings | None = None, *, seconds: float = PROFILE_SECONDS
) -> tuple[ModelSpec, ProfiledInput]:
    """Return the model of a task with a dataset, with what an example costs, and what was seen of its input."""
    batches = _batches(task)
    with task_code(task, "reading the dataset", batches):
        found = profile_input(
            batches.dataset, model, settings or _usual_settings(task), seconds=seconds, collate_fn=batches.collate
        )
    return replace(model, input=replace(found.cost, by_loader=True, stated=task.stated_input)), found


def _usual_settings(task: Task) -> InputSettings:
    """Return the settings under which a task reads its dataset without tuning."""
    return task.stated_input or InputSettings()


class TaskBatches:
    """The batches of one rank of a task with a dataset, one epoch after the other.

    Contestants with the same seed train on the same examples: settings change neither the examples of a step nor their
    order. Between runs the workers are stopped, so that they neither disturb another contestant nor get ahead of steps.
    """

    def __init__(
        self,
        task: Task,
        settings: InputSettings | None,
        *,
        rank: int,
        num_ranks: int,
        seed: int,
        shares: Sequence[int] = (),
    ) -> None:
        batches = _batches(task)
        self._task = task
        with task_code(task, "reading the dataset", batches), many_workers_allowed():
            self._loader: InputLoader = loader(
                batches.dataset,
                settings or _usual_settings(task),
                batch_size=task.batch_size,
                collate_fn=batches.collate,
                seed=seed,
                rank=rank,
                world_size=num_ranks,
                shares=tuple(shares),
                drop_last=True,
                worker_init_fn=_end_with_rank,
            )
        # A stopped worker would let the rank's exit wait for ever.
        atexit.register(self._loader.go_on)
        self._batches = self._all()

    @property
    def num_turns(self) -> int:
        """The number of workers that give batches by turns."""
        return max(self._loader.settings.num_workers, 1)

    def draw(self) -> Any:
        """Return this rank's next batch."""
        with task_code(self._task, "reading the dataset", self._task.batch), many_workers_allowed():
            try:
                return next(self._batches)
            except Exception as error:
                told = str(error).strip()
                if not told.startswith("Caught "):
                    raise
                # torch tells the whole traceback of its worker, and what went wrong comes last.
                raise RuntimeError(f"{told.splitlines()[-1]} (in a worker)") from error

    def pause(self) -> None:
        """Stop the workers until `go_on`."""
        self._loader.pause()

    def go_on(self) -> None:
        """Let stopped workers go on."""
        self._loader.go_on()

    def close(self) -> None:
        """End the workers."""
        self._loader.go_on()
        atexit.unregister(self._loader.go_on)
        self._batches.close()
        del self._batches, self._loader

    def _all(self) -> Generator[Any]:
        while True:
            yield from self._loader


def _end_with_rank(_worker: int) -> None:
    """End this worker when its rank ends, for a stopped one does not notice. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _batches(task: Task) -> DatasetBatches:
    assert isinstance(task.batch, DatasetBatches), "the task has a dataset"
    return task.batch
