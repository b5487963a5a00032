"""What it costs to tune a script while it trains, and from which step on the whole run is ahead of stock DDP."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosync import units
from autosync.search.guarantee import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningCost:
    """The cost of tuning a script.

    After `first_step` steps of the training, `num_steps` more were made in `wall_seconds`. Under stock DDP one takes
    `stock_seconds`, and under the winner `winner_seconds`, as medians of the proof.
    """

    first_step: int = 0
    num_steps: int
    wall_seconds: float
    stock_seconds: float
    winner_seconds: float

    @classmethod
    def of(cls, verdict: Verdict, *, first_step: int, num_steps: int, wall_seconds: float) -> TuningCost:
        """Return the cost of tuning that ended with a verdict."""
        return cls(
            first_step=first_step,
            num_steps=num_steps,
            wall_seconds=wall_seconds,
            stock_seconds=verdict.default.measurement.median_seconds,
            winner_seconds=verdict.winner.measurement.median_seconds,
        )

    @property
    def lost_seconds(self) -> float:
        """The time by which the steps took longer than under stock DDP; negative if they were faster."""
        return self.wall_seconds - self.num_steps * self.stock_seconds

    @property
    def break_even_step(self) -> int | None:
        """The step of the training from which on tuning has paid; None if the winner is not faster."""
        gain = self.stock_seconds - self.winner_seconds
        if self.lost_seconds <= 0:
            return self._last_step
        return None if gain <= 0 else self._last_step + math.ceil(self.lost_seconds / gain)

    @property
    def _last_step(self) -> int:
        return self.first_step + self.num_steps

    def fields(self) -> dict[str, object]:
        """Return the fields of the cost in `summary.json`."""
        return {
            "num_steps": self.num_steps,
            "wall_seconds": round(self.wall_seconds, 3),
            "lost_seconds": round(self.lost_seconds, 3),
            "break_even_step": self.break_even_step,
        }

    def __str__(self) -> str:
        lost = self.lost_seconds
        text = (
            f"tuning took {self.num_steps} steps of the training, in {units.format_time(round(self.wall_seconds, 1))}: "
            f"{units.format_time(round(abs(lost), 1))} {'more' if lost > 0 else 'less'} than under stock DDP"
        )
        step = self.break_even_step
        if step is None or step == self._last_step:
            return text
        return f"{text}; with the winner, the run is ahead of stock DDP from step {step} on"
