"""One model in training with stages and without a flush: a step ends before the last backward passes of its batch.

In each step a rank makes all forward passes of its batch, and in turn with them the backward passes that earlier
batches have left (see `plan.rank_passes`). So several batches are under way, and their passes compute with parameters
of several versions: version t has the updates of t batches. Each version that passes need has a copy of the parameters
of this rank's stage. The copies take turns. The optimizer updates the model's own parameters.
`DoubleBufferedSession` and `StashingSession` say when it updates, and which version a pass takes.

The loss of a batch is known where the last stage is computed. A wait for it would be a flush, so ranks tell each other
the losses of a batch while later steps go on.

An update may come several steps after those of its batch. It is made with the optimizer's settings of that step, such
as the learning rate.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from autosync.errors import OperationError
from autosync.plan.rank_passes import RankPass, most_late
from autosync.runtime.same_batch import batch_mark
from autosync.runtime.stages.late_settings import LateSettings
from autosync.runtime.stages.stage_program import StageWork
from autosync.runtime.stages.staged_session import StagedSession


class UnflushedSession(StagedSession):
    """The training of one model with stages, without a flush, on one rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The batch of the step under way, the first one whose passes are not all made, and the next to be updated.
        self._batch = 0
        self._first_left = 0
        self._open_batch = 0
        self._settings = LateSettings(self._optimizer)
        self._copies: list[dict[str, nn.Parameter]] = []
        self._seen: dict[str, int] = {}
        self._telling = ThreadPoolExecutor(1, thread_name_prefix="autosync-losses")
        # What is known of the losses of the last batches, the oldest first.
        self._told: deque[Future[float]] = deque()
        self._num_untold = max(1, most_late(self._plan))

    def step(self, batch: Any) -> float:
        """Train on a global batch, which every rank has; return the loss of an earlier batch.

        It is that of as many batches before as the latest pass of any rank is steps late. The first steps return the
        loss of the first batch.
        """
        with self._failure.naming():
            microbatches = self._microbatches(batch)
            self._refuse_changed()
            self._settings.note(self._batch)
            self._boundaries.begin()
            loss = self._run(self._due(self._passes), microbatches)
            self._boundaries.ask_for_late()
            self._end_step()
            self._batch += 1
            self._note_versions()
            return self._tell(loss, batch_mark(batch), self._untrained_mark())

    def _due(self, passes: list[RankPass]) -> list[RankPass]:
        """Return those of some passes that are not made yet: late ones of steps before `finish` are."""
        return [one for one in passes if self._batch_of(one) >= self._first_left]

    def _batch_of(self, one: RankPass) -> int:
        """Return the batch of a pass."""
        return self._batch - one.late

    def _tell(self, loss: float, batch: int, untrained: int) -> float:
        """Begin to tell the others this rank's part of a loss; return the loss of an earlier batch."""
        self._told.append(self._telling.submit(self._whole_loss, loss, batch, untrained))
        if len(self._told) > self._num_untold + 1:
            self._told.popleft()
        return self._told[0].result()

    def _note_versions(self) -> None:
        self._seen = {name: self._parameters[name]._version for name in self._held}  # noqa: SLF001 - as below

    def _refuse_changed(self) -> None:
        changed = [name for name, version in self._seen.items() if self._parameters[name]._version != version]  # noqa: SLF001 - torch has no other way to see it
        if changed:
            raise OperationError(
                f"{changed[0]} was changed between two steps, and passes of the next step compute with parameters from "
                "before the last one (without a flush, states are loaded before the first step)"
            )

    # What a step leaves.

    def _end_step(self) -> None:
        """End a step: wait for the sends before it, and make the update that comes with its end, if one does."""
        self._boundaries.end_before()

    def _end_batch(self) -> None:
        """Update by the gradients of the open batch, which are summed, and open the next one."""
        with self._settings.of(self._open_batch):
            self._update()
        self._optimizer.zero_grad(set_to_none=True)
        self._open_batch += 1
        self._came.clear()

    def finish(self) -> None:
        """Make the backward passes that the last steps have left, and their updates. All ranks call it together."""
        with self._failure.naming():
            num_steps = self._batch
            for more in range(max(one.late for one in self._passes)):
                # As in later steps, without their own batches.
                self._batch = num_steps + more
                self._run(self._due([one for one in self._passes if one.late > more]), ())
                self._boundaries.end_before()
            self._batch = self._first_left = num_steps
            self._boundaries.end()
            self._end_last()
            if self._told:
                self._note_versions()
                self._told[-1].result()

    def _end_last(self) -> None:
        """Make the updates of steps that are over, if any is left."""

    def gather(self) -> None:
        self.finish()
        super().gather()

    def gather_optimizer(self) -> None:
        self.finish()
        super().gather_optimizer()

    def close(self) -> None:
        self._telling.shutdown(cancel_futures=True, wait=False)
        super().close()

    # The versions of parameters.

    def _make_copies(self, count: int, programs: dict[int, StageWork]) -> None:
        """Give each turn the programs of this rank's stages with a copy of their parameters."""
        for turn in range(count):
            copies = {name: nn.Parameter(self._parameters[name].detach().clone()) for name in self._held}
            replaced = {self._parameters[name]: one for name, one in copies.items()}
            self._copies.append(copies)
            self._programs[turn] = {stage: one.with_parameters(replaced) for stage, one in programs.items()}
            self._hook(copies)

    @torch.no_grad()
    def _keep_version(self, version: int) -> None:
        """Keep the parameters as they are now, in place of the oldest version."""
        if self._copies:
            for name, copy in self._copies[version % len(self._copies)].items():
                copy.data.copy_(self._parameters[name])
                copy.grad = None

    def _turn(self, one: RankPass) -> int:
        """Return the copies with which a pass computes. Before the first update all are equal."""
        return (self._batch_of(one) - one.misses) % max(1, len(self._copies))
