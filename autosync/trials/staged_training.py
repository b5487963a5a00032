"""Trains one contestant whose strategy has stages, step by step on this rank."""

from __future__ import annotations

import gc
import random
from typing import Any

import torch

from autosync.errors import AutosyncError
from autosync.runtime.stages.recorded_model import record_stages
from autosync.runtime.stages.staged_session import MakeStages
from autosync.runtime.trainer import begin_trainer
from autosync.specs.examples import join_batches
from autosync.specs.profile.clock import clock_of
from autosync.specs.task import Task
from autosync.specs.task_run import draw_batch
from autosync.strategy.bundle import Bundle
from autosync.trials import meters
from autosync.trials.rank_requests import RefusedError
from autosync.trials.training import CPU, batch_generator


class StagedTraining:
    """A task in training with stages; it offers what `ContestantTraining` offers.

    The global batch of a step is what all ranks would draw for themselves, one behind the other. So all contestants
    train on the same examples.
    """

    def __init__(
        self,
        task: Task,
        *,
        bundle: Bundle,
        seed: int,
        timeout_seconds: float,
        make_stages: MakeStages = record_stages,
    ) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self._task = task
        self._clock = clock_of(CPU)
        self._marks: list[tuple[Any, Any]] = []
        self._losses: list[float] = []
        self._doing: str | None = None
        self._generators = [batch_generator(seed, rank) for rank in range(bundle.cluster.num_workers)]
        self.trace_file = None
        try:
            self._trainer = begin_trainer(
                task, bundle, None, timeout_seconds=timeout_seconds, init_sync=False, make_stages=make_stages
            )
        except AutosyncError as error:
            raise RefusedError(str(error)) from error

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole model's present parameters by name. All ranks ask together."""
        self._trainer.state_dict()
        return {name: parameter.detach() for name, parameter in self._trainer.model.named_parameters()}

    @property
    def num_turn_steps(self) -> int:
        """Return 0: no loader reads its batches."""
        return 0

    def take_losses(self) -> list[float]:
        """Return the loss of each step since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def where(self) -> str | None:
        """Return what is being done, in words; None between steps. Another thread may call this."""
        return self._doing

    def go_on(self) -> None:
        """Do nothing: no worker reads its batches."""

    def pause(self) -> None:
        """Do nothing: no worker reads its batches."""

    def take_input(self) -> None:
        """Say nothing of the input: a rank's stage has no batch of its own."""

    def take_seconds(self) -> list[float]:
        """Return the seconds of each step since the last call."""
        marks, self._marks = self._marks, []
        return [self._clock.seconds(ends)[0] for ends in marks]

    def step(self) -> None:
        """Take one optimizer step."""
        self._doing = "drawing its batches"
        batch = join_batches([draw_batch(self._task, one) for one in self._generators])
        self._doing = "in the passes of its stage"
        start = self._clock.mark()
        self._losses.append(self._trainer.step(batch))
        self._marks.append((start, self._clock.mark()))
        self._doing = None

    def settle(self) -> None:
        """Do nothing: a step leaves nothing under way."""

    def close(self) -> None:
        """Free connections, threads and memory; all ranks must call this together."""
        self._trainer.close()
        del self._trainer
        gc.collect()
        meters.give_back_memory()
