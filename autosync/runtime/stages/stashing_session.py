"""Training without a flush by the rule of PipeDream: each stage takes its newest parameters, and stashes them.

A stage is updated as soon as its backward passes of a batch are over, without a wait for other stages. A forward pass
takes the newest version of the stage's parameters. These are kept until the microbatch's backward pass, which takes the
same version. A stage is never updated between the two passes of a microbatch whose version has no copy: `late_turns`
says how many updates a microbatch can miss, at most d, so a rank has d + 1 copies. Without slack, the last stage needs
none, for each of its forward passes is followed by its backward pass.

Which version a pass takes depends on the plan alone, and not on what is there by chance. So `finish` changes nothing in
the steps that follow: it makes updates before they are needed, and copies of the versions before them remain.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.3 (weight
stashing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autosync.plan.rank_passes import RankPass
from autosync.runtime.stages.stage_program import StageWork
from autosync.runtime.stages.unflushed_session import UnflushedSession


class StashingSession(UnflushedSession):
    """Updates this rank's stage when its last backward pass of a batch is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        backward = [one for one in self._passes if not one.is_forward]
        self._last_backward = max(backward, key=lambda one: one.place.microbatch).operation
        self._most_missed = max(one.misses for one in self._passes)

    def _begin_programs(self, programs: dict[int, StageWork]) -> None:
        if self._most_missed:
            self._make_copies(self._most_missed + 1, programs)
        else:
            super()._begin_programs(programs)

    def _pass(self, one: RankPass, microbatches: Sequence[Any]) -> torch.Tensor | None:
        loss = super()._pass(one, microbatches)
        if one.operation == self._last_backward:
            self._sum_up()
            self._end_batch()
            self._keep_version(self._open_batch)
        return loss

    def _taking(self, name: str) -> Callable[[torch.Tensor], None]:
        complete = super()._taking(name)

        def take(parameter: torch.Tensor) -> None:
            self._add_up(name, parameter)
            complete(parameter)

        return take

    @torch.no_grad()
    def _add_up(self, name: str, parameter: torch.Tensor) -> None:
        """Move a gradient of a copy to the parameter itself: microbatches of a batch may take several copies."""
        own = self._parameters[name]
        if parameter is own:
            return
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "the gradient that was just accumulated"
        if own.grad is None:
            own.grad = gradient
        elif gradient.is_sparse:
            own.grad = own.grad + gradient
        else:
            own.grad += gradient
