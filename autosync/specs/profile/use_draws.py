"""Samples which variables several ranks use in many steps, by forward and backward passes alone.

The ranks are played one after another. Each begins as a trial's ranks do: with a model that was built from the same
seed, and with batches of its own. So what depends on the batch differs between them, and what depends on the number of
the step does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autosync.specs import task_run
from autosync.specs.profile.assemble import ProfileRecords
from autosync.specs.task import Task
from autosync.specs.use_sample import UseSample, sample_of

NUM_RANKS = 4
MOST_STEPS, LEAST_STEPS = 32, 8
MOST_SECONDS = 5.0
"""The time for all ranks. They take fewer steps if it is too short for the most, but never less than the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseDraws:
    """How the ranks of a task are played: `build` makes a model, `place` moves a batch, passes run in `around()`."""

    task: Task
    seed: int
    build: Callable[[], nn.Module]
    place: Callable[[Any], Any]
    around: Callable[[], AbstractContextManager[Any]]

    def sample(self, names: Sequence[str]) -> UseSample | None:
        """Return the sample of the steps of all ranks; None if all of them use all `names`."""
        state = random.getstate()
        try:
            first = self._steps_of(0, MOST_STEPS, MOST_SECONDS / NUM_RANKS)
            others = [self._steps_of(rank, len(first)) for rank in range(1, NUM_RANKS)]
        finally:
            # The user's program may continue after this.
            random.setstate(state)
        return sample_of([first, *others], names)

    def _steps_of(self, rank: int, num_steps: int, seconds: float | None = None) -> list[frozenset[str]]:
        """Return what a rank uses in each step, of `num_steps`, or of fewer if they take longer than that."""
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        model, generator = self.build(), torch.Generator().manual_seed(self.seed * 1_000_003 + rank)
        found: list[frozenset[str]] = []
        began = time.monotonic()
        while len(found) < num_steps:
            if seconds is not None and len(found) >= LEAST_STEPS and time.monotonic() - began > seconds:
                break
            found.append(self._step(model, generator))
        return found

    def _step(self, model: nn.Module, generator: torch.Generator) -> frozenset[str]:
        """Return the parameters that get a gradient in a step."""
        model.zero_grad(set_to_none=True)
        for _ in range(self.task.accumulation_steps):
            batch = self.place(task_run.draw_batch(self.task, generator))
            with self.around():
                task_run.run_backward(self.task, task_run.compute_loss(self.task, model, batch))
        return frozenset(name for name, parameter in model.named_parameters() if parameter.grad is not None)


def are_all_used(records: ProfileRecords) -> bool:
    """Whether every profiled step gave a gradient to every parameter that may get one."""
    wanted = {
        name
        for name, parameter in records.structure.parameters.items()
        if parameter.requires_grad and 0 not in parameter.shape
    }
    return all(
        wanted.issubset(name for microstep in step.microsteps for name in microstep.ready) for step in records.timed
    )
