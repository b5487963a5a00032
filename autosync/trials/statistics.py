"""What step times say: medians with intervals, ratios with intervals, and whether a difference was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with the bounds of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def slowest_rank(step_seconds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """A step lasts as long as on its slowest rank."""
    return tuple(max(ranks) for ranks in zip(*step_seconds, strict=True))


def median_interval(seconds: Sequence[float], *, seed: int = 0) -> Interval:
    """The median with its interval."""
    medians = _resampled_medians(seconds, np.random.default_rng(seed))
    return _interval(float(np.median(seconds)), medians)


def ratio_interval(
    seconds: Sequence[float], others: Sequence[float], *, num_blocks: int = 1, seed: int = 0
) -> Interval:
    """How many times as long the first steps take as the others, by medians.

    Steps of one block share whatever went on meanwhile, so whole blocks are resampled, the same ones of both.
    """
    rng = np.random.default_rng(seed)
    first = np.asarray(seconds).reshape(num_blocks, -1)
    second = np.asarray(others).reshape(num_blocks, -1)
    if num_blocks == 1:
        ratios = _resampled_medians(seconds, rng) / _resampled_medians(others, rng)
    else:
        chosen = rng.integers(num_blocks, size=(NUM_RESAMPLES, num_blocks))
        top = np.median(first[chosen].reshape(NUM_RESAMPLES, -1), axis=1)
        ratios = top / np.median(second[chosen].reshape(NUM_RESAMPLES, -1), axis=1)
    return _interval(float(np.median(first) / np.median(second)), ratios)


def _resampled_medians(seconds: Sequence[float], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    values = np.asarray(seconds)
    chosen = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
    return np.asarray(np.median(values[chosen], axis=1), dtype=np.float64)


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))
