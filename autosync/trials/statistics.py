"""What step times say: medians with intervals, ratios with intervals, and whether a difference was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with the bounds of its interval."""

    value: float
    low: float
    high: float


def median_interval(seconds: Sequence[float], *, seed: int = 0) -> Interval:
    """The median with its interval."""
    medians = _resampled_medians(seconds, np.random.default_rng(seed))
    return _interval(float(np.median(seconds)), medians)


def _resampled_medians(seconds: Sequence[float], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    values = np.asarray(seconds)
    chosen = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
    return np.asarray(np.median(values[chosen], axis=1), dtype=np.float64)


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def correlated_median_interval(seconds: Sequence[float], *, seed: int = 0) -> Interval:
    """The median of one trial's consecutive steps with its interval.

    Steps that follow one another are alike, so they say less than as many independent ones would. The bootstrap
    interval is stretched by what a first-order autoregression of the observed correlation makes of a mean's error.
    """
    plain = median_interval(seconds, seed=seed)
    correlation = rank_correlation(seconds)
    stretch = math.sqrt((1 + correlation) / (1 - correlation))
    low = plain.value - stretch * (plain.value - plain.low)
    high = plain.value + stretch * (plain.high - plain.value)
    return Interval(value=plain.value, low=max(low, min(seconds)), high=min(high, max(seconds)))


def rank_correlation(seconds: Sequence[float]) -> float:
    """How alike neighbouring steps are, 0 to 0.9: the correlation of their ranks, which outliers do not move."""
    count = len(seconds)
    if count < 4:
        return 0.0
    ranks = np.argsort(np.argsort(seconds, kind="stable"), kind="stable") - (count - 1) / 2
    observed = float(ranks[:-1] @ ranks[1:]) / float(ranks @ ranks)
    # Estimated from few steps it comes out too small by about (1 + 3r) / n.
    return min(max((observed * count + 1) / (count - 3), 0.0), 0.9)


def blocked_median_interval(blocks: Sequence[Sequence[float]], *, seed: int = 0) -> Interval:
    """The median of all steps with its interval. Whole blocks are resampled, for their steps are alike."""
    values = np.asarray(blocks)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
    medians = np.median(values[chosen].reshape(NUM_RESAMPLES, -1), axis=1)
    return _interval(float(np.median(values)), medians)


def round_ratio(
    blocks: Sequence[Sequence[float]], others: Sequence[Sequence[float]], *, confidence: float = CONFIDENCE
) -> Interval:
    """How many times as long the first take as the others, from rounds in which each had a block of steps.

    Each round gives one ratio, of the blocks' medians; the figure is their centre (Hodges and Lehmann), the interval
    inverts Wilcoxon's signed-rank test. See the note ROUNDS AS UNITS. `low` is 0 and `high` infinite where the rounds
    are too few for the confidence.
    """
    ratios = np.log(np.median(np.asarray(blocks), axis=1)) - np.log(np.median(np.asarray(others), axis=1))
    first, second = np.triu_indices(len(ratios))
    averages = np.sort((ratios[first] + ratios[second]) / 2)
    value = float(np.exp(np.median(averages)))
    left_out = _num_left_out(len(ratios), (1 - confidence) / 2)
    if left_out == 0:
        return Interval(value=value, low=0.0, high=math.inf)
    return Interval(value=value, low=float(np.exp(averages[left_out - 1])), high=float(np.exp(averages[-left_out])))


# ROUNDS AS UNITS. Steps of one block share whatever went on meanwhile, blocks that follow one another do too, and the
# whole machine may drift: no step is independent of the others. But within each round the order of the contestants is
# drawn by lot, apart from all other rounds. So if two contestants are the same, each round's ratio would as likely have
# come out inverted, whatever the noise was: the signs are fair coins, and the signed-rank test is exact, with however
# few rounds. A bootstrap of twelve rounds is not: where it says 5 of 100 it claims a difference in 1 to 8, as the noise
# will.


def min_rounds(confidence: float = CONFIDENCE) -> int:
    """How many rounds an interval needs at the least: with fewer even rounds that all agree may be luck."""
    # A hair of tolerance: 1 - 0.95 is not quite 0.05.
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def _num_left_out(num_rounds: int, tail: float) -> int:
    """How many of the sorted averages the interval leaves out at each end, and so has its end at: 0 if it has none.

    The k-th smallest is the end where the sum of positive ranks is below k with a probability of at most the tail.
    """
    # The number of ways in which signs give each sum of positive ranks.
    ways = np.zeros(num_rounds * (num_rounds + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, num_rounds + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
        ways /= 2.0
    return int(np.searchsorted(np.cumsum(ways), tail + 1e-12, side="right"))
