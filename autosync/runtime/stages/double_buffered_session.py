"""Training without a flush by the rule of 2BW: all passes of a batch, in every stage, take one version of parameters.

Step t ends with the update of batch t - 1, whose last backward passes it has made. So the passes of batch t have begun
before that update, and all of them compute with the parameters before it:

    parameters after the update of batch t = those before it, changed by the gradient of batch t at the parameters
    before the update of batch t - 1

Two batches are under way, so a rank has two copies of the parameters.

Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autosync.plan.rank_passes import RankPass
from autosync.runtime.stages.stage_program import PassedMicrobatch, StageWork
from autosync.runtime.stages.unflushed_session import UnflushedSession

_TURNS = 2


class DoubleBufferedSession(UnflushedSession):
    """Updates all stages at the end of the step after that of a batch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._backward_batch = 0
        # Complete gradients of a batch, until the update of the batch before it is made.
        self._early: dict[str, torch.Tensor] = {}

    def _begin_programs(self, programs: dict[int, StageWork]) -> None:
        self._make_copies(_TURNS, programs)

    def _end_step(self) -> None:
        """End the passes; update by the gradients of the batch before, if they are not yet used."""
        if self._open_batch < self._batch:
            self._sum_up()
            super()._end_step()
            self._end_batch()
        else:
            super()._end_step()
        self._keep_version(self._batch)

    def _end_last(self) -> None:
        if self._open_batch < self._batch:
            self._sum_up()
            self._end_batch()

    def _end_batch(self) -> None:
        super()._end_batch()
        early, self._early = self._early, {}
        for name, gradient in early.items():
            self._parameters[name].grad = gradient
            self._take(name)

    def _backward(
        self, program: StageWork, one: RankPass, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor]
    ) -> Mapping[int, torch.Tensor]:
        self._backward_batch = self._batch_of(one)
        made = super()._backward(program, one, passed, gradients)
        copies = self._copies[self._turn(one)]
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
