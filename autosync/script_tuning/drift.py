"""Drift of a training: its steps become slower for good, because a link or a processor has become slower.

Steps are taken in blocks. The median of a block hardly depends on single slow steps, and a change counts once several
blocks in a row have it, so a short disturbance is none. What is usual is known from the proof, and after a change from
the blocks that have shown it. Waits for input are left out: no strategy changes them, and workers that are done at the
same time make few steps wait for many, so that blocks of the same training differ by much.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autosync import units

BLOCK_STEPS = 8
NUM_BLOCKS = 3
"""A change must last for this many blocks."""
LEAST_FACTOR = 1.15
"""Steps that are slower by less than this are not slower: medians of a busy machine differ by as much."""
_USUAL_SHARE = 0.9
"""The share of the usual blocks that a block must exceed. The slowest of them may be outliers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A lasting change of the time that a step takes, first seen when the script had made `num_steps` steps."""

    num_steps: int
    before_seconds: float
    after_seconds: float

    @property
    def is_slower(self) -> bool:
        return self.after_seconds > self.before_seconds

    def fields(self) -> dict[str, object]:
        """Return the fields of the change in `summary.json`."""
        return {
            "num_steps": self.num_steps,
            "before_seconds": round(self.before_seconds, 6),
            "after_seconds": round(self.after_seconds, 6),
        }

    def __str__(self) -> str:
        before, after = units.format_time(self.before_seconds), units.format_time(self.after_seconds)
        if not self.is_slower:
            return f"step {self.num_steps}: steps have become faster again, from {before} to {after}"
        return (
            f"step {self.num_steps}: steps have become slower, from {before} to {after} "
            f"({self.after_seconds / self.before_seconds:.2f} times as long)"
        )


class DriftWatch:
    """Notices lasting changes in the steps of a training, which it is given in their order."""

    def __init__(self, usual_seconds: Sequence[float]) -> None:
        """`usual_seconds` are the times of steps as they should be. If they are few, the first steps show it."""
        self._usual = list(_medians(usual_seconds))
        self._left_over: list[float] = []
        self._latest: list[float] = []
        self._has_slowed = False

    def take(self, seconds: Iterable[float], num_steps: int) -> Drift | None:
        """Take in further steps, the last of which was the script's `num_steps`-th. Return a change that they show.

        Steps that become faster only show a change if they were slower before.
        """
        self._left_over += seconds
        num_whole = len(self._left_over) // BLOCK_STEPS * BLOCK_STEPS
        self._latest += _medians(self._left_over[:num_whole])
        self._left_over = self._left_over[num_whole:]
        if len(self._latest) < NUM_BLOCKS:
            return None
        self._latest = self._latest[-NUM_BLOCKS:]
        if not self._usual:
            self._usual, self._latest = self._latest, []
            return None
        return self._change(num_steps)

    def _change(self, num_steps: int) -> Drift | None:
        usual = statistics.median(self._usual)
        ordered = sorted(self._usual)
        within = int(_USUAL_SHARE * (len(ordered) - 1))
        is_slower = min(self._latest) > max(usual * LEAST_FACTOR, ordered[within])
        is_faster = max(self._latest) < min(usual / LEAST_FACTOR, ordered[-1 - within])
        if not is_slower and not is_faster:
            return None
        self._usual, self._latest = self._latest, []
        is_told, self._has_slowed = is_slower or self._has_slowed, is_slower
        if not is_told:
            return None
        return Drift(num_steps=num_steps, before_seconds=usual, after_seconds=statistics.median(self._usual))


def _medians(seconds: Sequence[float]) -> Iterator[float]:
    """Return the median of each whole block."""
    for begin in range(0, len(seconds) - BLOCK_STEPS + 1, BLOCK_STEPS):
        yield statistics.median(seconds[begin : begin + BLOCK_STEPS])
