"""One model in training with stages and without a flush: a step ends before the last backward passes of its batch.

Step t makes the forward passes of batch t, and in turn with them the backward passes that batch t - 1 has left (see
`plan.rank_passes`). Then batch t - 1 has all its gradients: they are summed, and the optimizer updates. So the passes
of batch t have begun before that update, and all of them compute with the parameters before it, in every stage. This is
the rule of 2BW:

    parameters after the update of batch t = those before it, changed by the gradient of batch t at the parameters
    before the update of batch t - 1

Two batches are under way, so a rank has two copies of the parameters that its stage computes with, which take turns.
A third copy is the model's own; the optimizer updates it, and its values are those after the last update.

The loss of a batch is known where the last stage is computed. A wait for it would be a flush, so ranks tell each other
the losses of batch t while step t + 1 goes on.

Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from autosync.errors import OperationError
from autosync.plan.rank_passes import RankPass
from autosync.runtime.same_batch import batch_mark, sums_of_step
from autosync.runtime.stages.stage_program import PassedMicrobatch, StageWork
from autosync.runtime.stages.staged_session import StagedSession

_TURNS = 2


class UnflushedSession(StagedSession):
    """The training of one model with stages, without a flush, on one rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The batch of the step under way, and the one whose gradients the engine takes.
        self._batch = 0
        self._open_batch = 0
        self._has_late = False
        self._copies: dict[int, dict[str, nn.Parameter]] = {}
        # Complete gradients of a batch, until the update of the batch before it is made.
        self._early: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        self._telling = ThreadPoolExecutor(1, thread_name_prefix="autosync-losses")
        self._told: Future[list[float]] | None = None

    def step(self, batch: Any) -> float:
        """Train on a global batch, which every rank has; return the loss of the batch before.

        The first step returns the loss of its own batch.
        """
        with self._failure.naming():
            microbatches = self._microbatches(batch)
            self._refuse_changed()
            self._boundaries.begin()
            loss = self._run([one for one in self._passes if self._has_late or not one.late], microbatches)
            self._boundaries.ask_for_late()
            self._has_late = True
            self._end_step()
            self._set_copies(self._batch + 1)
            self._batch += 1
            self._note_versions()
            return self._tell(loss, batch_mark(batch))

    def _tell(self, loss: float, mark: int) -> float:
        """Begin to tell the others this rank's part of a loss; return the loss of the batch before."""
        before = self._told
        self._told = self._telling.submit(sums_of_step, self._links, self._plan.num_workers, [loss], mark)
        (whole,) = (before or self._told).result()
        return whole

    def _note_versions(self) -> None:
        self._versions = {name: self._parameters[name]._version for name in self._held}  # noqa: SLF001 - as below

    def _refuse_changed(self) -> None:
        changed = [name for name, version in self._versions.items() if self._parameters[name]._version != version]  # noqa: SLF001 - torch has no other way to see it
        if changed:
            raise OperationError(
                f"{changed[0]} was changed between two steps, and passes of the next step compute with parameters from "
                "before the last one (without a flush, states are loaded before the first step)"
            )

    # What a step leaves.

    def _end_step(self) -> None:
        """End the passes; update by the gradients of the batch before, if they are not yet used."""
        if self._open_batch < self._batch:
            self._sum_up()
            self._boundaries.end()
            self._end_batch()
        else:
            self._boundaries.end()

    def _end_batch(self) -> None:
        """Update by the gradients of the open batch, and open the next one."""
        self._update()
        self._optimizer.zero_grad(set_to_none=True)
        self._open_batch += 1
        self._came.clear()
        early, self._early = self._early, {}
        for name, gradient in early.items():
            self._parameters[name].grad = gradient
            self._take(name)

    def finish(self) -> None:
        """Make the backward passes that the last step has left, and its update. All ranks call it together."""
        with self._failure.naming():
            if self._has_late:
                self._run([one for one in self._passes if one.late], ())
                self._has_late = False
                self._sum_up()
                self._boundaries.end()
                self._end_batch()
                self._note_versions()
            if self._told is not None:
                self._told.result()

    def gather(self) -> None:
        self.finish()
        super().gather()

    def gather_optimizer(self) -> None:
        self.finish()
        super().gather_optimizer()

    def close(self) -> None:
        self._telling.shutdown(cancel_futures=True, wait=False)
        super().close()

    # The copies of parameters.

    def _begin_programs(self, programs: dict[int, StageWork]) -> None:
        """Give each turn the programs of this rank's stages with a copy of their parameters."""
        for turn in range(_TURNS):
            copies = {name: nn.Parameter(self._parameters[name].detach().clone()) for name in self._held}
            replaced = {self._parameters[name]: one for name, one in copies.items()}
            self._copies[turn] = copies
            self._programs[turn] = {stage: one.with_parameters(replaced) for stage, one in programs.items()}
            self._hook(copies)

    @torch.no_grad()
    def _set_copies(self, batch: int) -> None:
        """Let a batch compute with the parameters as they are now."""
        for name, copy in self._copies[batch % _TURNS].items():
            copy.data.copy_(self._parameters[name])
            copy.grad = None

    def _turn(self, one: RankPass) -> int:
        return self._batch_of(one) % _TURNS

    def _batch_of(self, one: RankPass) -> int:
        """Return the batch of a pass: late passes are of the step before."""
        return self._batch - one.late

    # Gradients.

    def _backward(
        self, program: StageWork, one: RankPass, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor]
    ) -> Mapping[int, torch.Tensor]:
        self._backward_batch = self._batch_of(one)
        made = super()._backward(program, one, passed, gradients)
        copies = self._copies[self._backward_batch % _TURNS]
        for name in self._held:
            # The last pass may have brought no gradient where earlier ones did.
            if self._last_passes[name] == one.operation and copies[name].grad is not None:
                self._complete(name, copies[name])
        return made

    def _complete(self, name: str, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "the gradient that was just accumulated"
        if self._backward_batch == self._open_batch:
            self._parameters[name].grad = gradient
            self._take(name)
        else:
            self._early[name] = gradient
