"""Which of a script's steps count: those in which it did nothing but train.

A rank notes where the script ran a forward pass without gradients, read a state_dict, or began a pass of a DataLoader.
What it does in most steps, as one that averages weights does, belongs to its training. Everything else that is not
training shows in the time between an optimizer's step and the next forward pass, without waits for batches, which is
then far longer than usual. A step counts if it does on every
rank, because all ranks wait for the slowest. What is usual is known from the latest steps.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

FAR_FACTOR = 5.0
FAR_SHARE = 0.3
"""The time between two steps is out of line if it exceeds this many times the usual time, and the usual time by this
share of a step."""
NUM_USUAL = 256
"""The usual times are those of so many steps."""
NUM_RECENT = 32
"""The script does in most steps what it did in more than half of this many, or of all if they are fewer."""


class _RankFilter:
    """What is usual on one rank."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=NUM_USUAL)
        self._disturbances: deque[AbstractSet[str]] = deque(maxlen=NUM_RECENT)

    def count(self, answer: Mapping[str, Any], usual_step: float) -> list[bool]:
        """Return for each step of a run whether it counts on this rank."""
        self._gaps.extend(answer["gap_seconds"])
        found = [frozenset(kinds) for kinds in answer["disturbances"]]
        self._disturbances.extend(found)
        usual = statistics.median(self._gaps)
        limit = max(FAR_FACTOR * usual, usual + FAR_SHARE * usual_step)
        usual_kinds = self._usual_kinds()
        return [kinds <= usual_kinds and gap <= limit for gap, kinds in zip(answer["gap_seconds"], found, strict=True)]

    def _usual_kinds(self) -> AbstractSet[str]:
        recent = self._disturbances
        known: frozenset[str] = frozenset().union(*recent)
        return {kind for kind in known if 2 * sum(kind in kinds for kinds in recent) > len(recent)}


class StepFilter:
    """Decides about one step after the other, from what was usual so far."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RankFilter] = {}
        self._seconds: deque[float] = deque(maxlen=NUM_USUAL)

    def count(self, answers: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Return for each step of a run whether it counts. `answers` are those of the workers, in order."""
        self._seconds.extend(map(max, zip(*(one["step_seconds"] for one in answers), strict=True)))
        usual_step = statistics.median(self._seconds)
        by_rank = [
            self._ranks.setdefault(rank, _RankFilter()).count(answer, usual_step) for rank, answer in enumerate(answers)
        ]
        return list(map(all, zip(*by_rank, strict=True)))
