"""What the input of a model costs: facts about its dataset and its storage, as a loader measured them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCost:
    """What a rank needs for one example.

    `example_bytes` come from storage over the node's network interface. `worker_seconds` is the time in which a worker
    makes the example of them: it decodes, transforms and collates.
    """

    __pydantic_config__ = STRICT

    example_bytes: float = 0.0
    worker_seconds: float = 0.0

    def __post_init__(self) -> None:
        for what, value in (("example_bytes", self.example_bytes), ("worker_seconds", self.worker_seconds)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{what} {value} cannot be (a finite number of 0 or more)")

    def dilated(self, factor: float) -> InputCost:
        """Return the cost with work that takes `factor` times as long, and the same bytes."""
        return replace(self, worker_seconds=self.worker_seconds * factor)
