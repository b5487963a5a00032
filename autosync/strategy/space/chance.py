"""Chance: draws under weights."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def draw_weighted(rng: random.Random, weights: Mapping[T, float]) -> T:
    """A key, as often as its weight says."""
    return rng.choices(list(weights), list(weights.values()))[0]
