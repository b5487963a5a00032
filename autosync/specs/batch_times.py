"""The times of passes with batches of several sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.documents import STRICT

LEAST_SIZES = 3
"""With fewer sizes, the times of others cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTime:
    """The time of the forward and backward passes of one microstep with a batch of `num_examples`."""

    __pydantic_config__ = STRICT

    num_examples: int
    seconds: float

    def __post_init__(self) -> None:
        if self.num_examples < 1 or not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"{self.num_examples} examples in {self.seconds} s (1 or more, in more than 0 seconds)")


def check_batch_times(sizes: Sequence[BatchTime]) -> None:
    """Raise ValueError unless these are none, or enough, from small to large."""
    if sizes and len(sizes) < LEAST_SIZES:
        raise ValueError(f"times of {len(sizes)} batch sizes tell little ({LEAST_SIZES} or more, or none)")
    counts = [one.num_examples for one in sizes]
    if counts != sorted(set(counts)):
        raise ValueError(f"the batch sizes {counts} do not rise (from small to large, each once)")
