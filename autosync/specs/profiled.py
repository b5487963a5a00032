"""How far the times of a profile can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The quality of measured times.

    `low_seconds` to `high_seconds` is the 95 % interval of the compute time of one optimizer step, from `num_steps`
    steps; both are None if these are too few. `other_cpu_share` is the share of processor time that other programs
    used; `waited_share` is the share of time in which threads of the profile waited for a processor; both are None if
    unknown, as on a GPU. The flag `busy_machine` means that one of these shares is too large, `unsteady` that the
    interval is too wide.
    """

    __pydantic_config__ = STRICT

    num_steps: int
    low_seconds: float | None = None
    high_seconds: float | None = None
    other_cpu_share: float | None = None
    waited_share: float | None = None
    flags: tuple[Literal["busy_machine", "unsteady"], ...] = ()

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"{self.num_steps} steps measure nothing (1 or more)")
        if (self.low_seconds is None) != (self.high_seconds is None):
            raise ValueError("half an interval (low_seconds and high_seconds, or neither)")
        low, high = self.low_seconds, self.high_seconds
        if low is not None and high is not None and not 0 <= low <= high < math.inf:
            raise ValueError(f"{low} to {high} is no interval (0 <= low_seconds <= high_seconds)")
        for share in (self.other_cpu_share, self.waited_share):
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{share} is no share (0 to 1)")

    def dilated(self, factor: float) -> Profiled:
        """Return the same quality for times that are `factor` times as long."""
        if self.low_seconds is None or self.high_seconds is None:
            return self
        return replace(self, low_seconds=self.low_seconds * factor, high_seconds=self.high_seconds * factor)
