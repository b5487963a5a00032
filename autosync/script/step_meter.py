"""The steps of a script: when each begins and ends, and whether the script did anything else within it.

A step ends where the next one begins: with the first forward pass that wants gradients after an optimizer's step. At
that moment no gradient is on its way, so it is also where the strategy may change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from autosync.script.reserves import Reserves

Disturbance = Literal["evaluation", "bare_forward", "model_state", "optimizer_state", "first_batch"]
"""What a script does besides training: a forward pass in evaluation mode, one without gradients, reading the state_dict
of the model or of an optimizer, and beginning a pass of a DataLoader, whose workers then start or have nothing read
ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of a script.

    In `wait_seconds` it waited for batches of DataLoaders. `gap_seconds` is the part of `seconds` that follows the
    optimizer's step, without such waits: at times an evaluation runs in it, or a checkpoint is written. `disturbances`
    are the kinds of what the script did within the step besides training. `lost_share` is the part of its batches that
    loaders had read ahead and did not make good within the step; negative if they have more ready now. At its end, they
    have `num_left` batches ready.
    """

    seconds: float
    gap_seconds: float
    disturbances: frozenset[Disturbance] = frozenset()
    wait_seconds: float = 0.0
    lost_share: float = 0.0
    num_left: int = 0


class StepMeter:
    """Tells where steps begin, and measures them."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.num_steps = 0
        """The number of steps measured."""
        self.reserves = Reserves()
        """The batches that the script's loaders have ready."""
        self._steps: list[StepTime] = []
        self._clock = clock
        self._began: float | None = None
        self._updated: float | None = None
        self._disturbances: set[Disturbance] = set()
        self._is_skipped = False
        self._wait_seconds = self._waited_before = 0.0

    @property
    def has_no_update(self) -> bool:
        """Whether what was taken for a step has ended without any update, because a scaler of gradients skipped it."""
        return self._is_skipped and self._updated is None

    def take(self) -> list[StepTime]:
        """Return the steps since the last call. They are not kept: a training may have millions of them."""
        steps, self._steps = self._steps, []
        return steps

    def ends_a_step(self) -> bool:
        """A forward pass that wants gradients begins: return whether it is the first of a step.

        The step before it, if there is one, has then been measured.
        """
        if self._began is None:
            return True
        if self._updated is None:
            return False
        now = self._clock()
        self.num_steps += 1
        self._steps.append(
            StepTime(
                seconds=now - self._began,
                gap_seconds=now - self._updated - (self._wait_seconds - self._waited_before),
                disturbances=frozenset(self._disturbances),
                wait_seconds=self._wait_seconds,
                lost_share=self.reserves.lost_share(),
                num_left=self.reserves.num_left(),
            )
        )
        return True

    def step_begins(self) -> None:
        """The first forward pass of a step begins now; what came since the last step is part of neither."""
        self._updated = None
        self._is_skipped = False
        self._disturbances.clear()
        self._wait_seconds = self._waited_before = 0.0
        self.reserves.step_begins()
        self._began = self._clock()

    def update_ends(self) -> None:
        """An optimizer of the model has made its step."""
        self._updated = self._clock()
        self._waited_before = self._wait_seconds

    def update_is_skipped(self) -> None:
        """The step of an optimizer of the model was skipped."""
        self._is_skipped = True

    @contextlib.contextmanager
    def waiting(self, batches: Any) -> Iterator[None]:
        """The script waits for a batch of a DataLoader's iterator meanwhile."""
        began = self._clock()
        try:
            yield
            self.reserves.batch_is_taken(batches)
        finally:
            self._wait_seconds += self._clock() - began

    def disturb(self, kind: Disturbance) -> None:
        """The script does something within the step that is not training."""
        self._disturbances.add(kind)
