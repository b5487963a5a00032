"""The outer optimizer, which periodic averaging applies to an average of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """DiLoCo's outer step: Nesterov momentum on the averaged change of the parameters since the last average."""

    __pydantic_config__ = STRICT

    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0 and 0 <= self.momentum < 1):
            raise ValueError("no outer optimizer (learning_rate above 0, 0 <= momentum < 1)")
