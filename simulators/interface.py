"""What a simulator says: how long a step takes by a strategy that nobody has run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a step takes."""

    seconds: float
