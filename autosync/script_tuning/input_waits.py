"""How long the steps of a script waited for input while it was tuned, and why its loaders keep their settings.

**Means.** Few steps wait for all others: workers that read at the same time are done at the same time, and the next
steps find their batches ready. The median would say that none waits.

**Why they are not tried.** Batches must be those of the script under stock DDP. Another number of workers gives other
ones where making examples draws random numbers, asks for the worker, or changes the dataset. That is known only once
the batch is made: an augmentation may begin in a late epoch. A launched bundle refuses such a script. A training
that is tuned has promised to go on, and its steps cannot be taken back.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autosync import units

_WORTH_TELLING = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWaits:
    """The means of a step: its time, and the wait for batches on the rank that waited longest."""

    step_seconds: float
    wait_seconds: float

    @classmethod
    def of(cls, step_seconds: Sequence[Sequence[float]], wait_seconds: Sequence[Sequence[float]]) -> InputWaits | None:
        """Return the means of steps, given by rank; None of no steps."""
        if not step_seconds[0]:
            return None
        return cls(
            step_seconds=statistics.fmean(map(statistics.fmean, step_seconds)),
            wait_seconds=max(map(statistics.fmean, wait_seconds)),
        )

    @property
    def share(self) -> float:
        """The part of a step that is waiting for batches."""
        return min(1.0, self.wait_seconds / self.step_seconds) if self.step_seconds > 0 else 0.0

    @property
    def is_worth_telling(self) -> bool:
        """Whether steps would be noticeably faster without the waits."""
        return self.share >= _WORTH_TELLING

    def fields(self) -> dict[str, float]:
        """Return the fields of the waits in `summary.json`."""
        return {"step_seconds": self.step_seconds, "wait_seconds": self.wait_seconds}

    def __str__(self) -> str:
        wait, step = units.format_time(self.wait_seconds), units.format_time(self.step_seconds)
        return (
            f"input: a step waited {wait} of {step} for its batch, on the rank that waited longest. The settings of "
            "the script's loaders were not tried: with other workers, a dataset that draws random numbers gives other "
            "examples, and that is known only once a batch is made (autosync input tune finds settings)"
        )
