"""Which of a script's steps count: those in which it did nothing but train.

A rank notes where the script ran a forward pass without gradients or read a state_dict. Everything else that is not
training shows in the time between an optimizer's step and the next forward pass, which is then far longer than usual.
A step counts if it does on every rank, because all ranks wait for the slowest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

FAR_FACTOR = 5.0
FAR_SHARE = 0.3
"""The time between two steps is out of line if it exceeds this many times the usual time, and the usual time by this
share of a step."""


class StepFilter:
    """Decides about one step after the other, from the usual times so far."""

    def __init__(self) -> None:
        self._gaps: dict[int, list[float]] = {}
        self._seconds: list[float] = []

    def count(self, answers: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Return for each step of a run whether it counts. `answers` are those of the workers, in order."""
        num_steps = len(answers[0]["step_seconds"])
        self._seconds += [max(one["step_seconds"][step] for one in answers) for step in range(num_steps)]
        usual_step = statistics.median(self._seconds)
        counts = [True] * num_steps
        for rank, answer in enumerate(answers):
            gaps = self._gaps.setdefault(rank, [])
            gaps += answer["gap_seconds"]
            usual = statistics.median(gaps)
            limit = max(FAR_FACTOR * usual, usual + FAR_SHARE * usual_step)
            seen = zip(answer["gap_seconds"], answer["are_disturbed"], strict=True)
            for step, (gap, is_disturbed) in enumerate(seen):
                counts[step] = counts[step] and not is_disturbed and gap <= limit
        return counts
