"""The interval of a mean rate, from the times of consecutive steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_NUM_BLOCKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RateInterval:
    """A rate per second with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


def rate_interval(counts: Sequence[int], seconds: Sequence[float]) -> RateInterval:
    """Return how many things a second steps delivered; step i delivered `counts[i]` in `seconds[i]`.

    Prefetched batches come in bursts, so neighbouring steps are not independent. The interval is that of the mean over
    up to ten blocks of consecutive steps (Student's t). With fewer than two blocks, it is infinite.
    """
    from scipy import stats

    num_blocks = min(_NUM_BLOCKS, len(seconds))
    blocks = np.array_split(np.arange(len(seconds)), num_blocks) if num_blocks else []
    times = np.asarray(seconds, dtype=float)
    numbers = np.asarray(counts, dtype=float)
    total_seconds = max(float(times.sum()), 1e-9)
    value = float(numbers.sum()) / total_seconds
    if num_blocks < 2:
        return RateInterval(value=value, low=0.0, high=math.inf)
    # The ratio of two means: its error is that of the residuals of each block from the common rate.
    residuals = np.array([numbers[block].sum() - value * times[block].sum() for block in blocks])
    error = float(residuals.std(ddof=1)) * math.sqrt(num_blocks) / total_seconds
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, num_blocks - 1)) * error
    return RateInterval(value=value, low=max(value - reach, 0.0), high=value + reach)
