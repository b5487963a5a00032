"""Random draws with weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def draw_weighted(rng: random.Random, weights: Mapping[T, float]) -> T:
    """Return a key, drawn with a probability in proportion to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]
