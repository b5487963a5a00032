"""The statistics of step times: medians or means, and ratios, with their intervals. See the note WHICH CENTRE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

Floats = npt.NDArray[np.float64]

Centre = Literal["median", "mean"]
"""The single figure that stands for many step times."""


# WHICH CENTRE. Steps that compute and send are alike, apart from a few that something outside disturbed: their median
# is the step's time, and such outliers do not change it. Steps that wait for a loader are not alike. Some find a batch
# that was read ahead, others wait for several, and at the end of an epoch nothing is read ahead. With one half of 10 ms
# and one of 140 ms, the median may be either, and a training takes 75 ms a step. So their mean is their time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with the bounds of its interval."""

    value: float
    low: float
    high: float


def bootstrap_interval(seconds: Sequence[float], *, centre: Centre = "median", seed: int = 0) -> Interval:
    """Return the centre with its bootstrap interval."""
    values = np.asarray(seconds)
    chosen = np.random.default_rng(seed).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    return _interval(float(centre_of(values, centre)), centre_of(values[chosen], centre))


def centre_of(values: npt.ArrayLike, centre: Centre) -> npt.NDArray[np.float64]:
    """Return the centre of each row, or of the only row."""
    rows = np.asarray(values, dtype=np.float64)
    return np.asarray(np.mean(rows, axis=-1) if centre == "mean" else np.median(rows, axis=-1))


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return _around(value, float(low), float(high))


def _around(value: float, low: float, high: float) -> Interval:
    """Return an interval that has its value: rounding may leave a mean just beside it."""
    return Interval(value=value, low=min(low, value), high=max(high, value))


def correlated_interval(seconds: Sequence[float], *, centre: Centre = "median", seed: int = 0) -> Interval:
    """Return the centre of one trial's consecutive steps with its interval.

    Consecutive steps are correlated, so they tell less than as many independent steps would. The bootstrap interval is
    therefore stretched by the factor by which a first-order autoregression with the observed correlation increases the
    error of a mean.
    """
    plain = bootstrap_interval(seconds, centre=centre, seed=seed)
    correlation = rank_correlation(seconds)
    stretch = math.sqrt((1 + correlation) / (1 - correlation))
    low = plain.value - stretch * (plain.value - plain.low)
    high = plain.value + stretch * (plain.high - plain.value)
    return _around(plain.value, max(low, min(seconds)), min(high, max(seconds)))


def rank_correlation(seconds: Sequence[float]) -> float:
    """Return the rank correlation of neighbouring steps' times, limited to 0 to 0.9. Outliers hardly change it."""
    count = len(seconds)
    if count < 4:
        return 0.0
    ranks = np.argsort(np.argsort(seconds, kind="stable"), kind="stable") - (count - 1) / 2
    observed = float(ranks[:-1] @ ranks[1:]) / float(ranks @ ranks)
    # Estimated from few steps, the correlation is too small by about (1 + 3r) / n.
    return min(max((observed * count + 1) / (count - 3), 0.0), 0.9)


def blocked_interval(blocks: Sequence[Sequence[float]], *, centre: Centre = "median", seed: int = 0) -> Interval:
    """Return the centre of all steps with its interval. Whole blocks are resampled, because their steps are alike."""
    values = np.asarray(blocks)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
    centres = centre_of(values[chosen].reshape(NUM_RESAMPLES, -1), centre)
    return _interval(float(centre_of(values.ravel(), centre)), centres)


def round_ratio(
    blocks: Sequence[Sequence[float]],
    others: Sequence[Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
    centre: Centre = "median",
) -> Interval:
    """Return how many times as long `blocks` take as `others`; each has a block of steps from every round.

    If the rounds are too few for the confidence, `low` is 0 and `high` is infinite. See the note ROUNDS AS UNITS.
    """
    ratio_of = _ratio_of_means if centre == "mean" else _ratio_of_medians
    return ratio_of(centre_of(blocks, centre), centre_of(others, centre), (1 - confidence) / 2)


def _ratio_of_medians(first: Floats, second: Floats, tail: float) -> Interval:
    """Return the centre of the rounds' ratios (Hodges and Lehmann), and invert Wilcoxon's signed-rank test."""
    ratios = np.log(first) - np.log(second)
    rows, columns = np.triu_indices(len(ratios))
    averages = np.sort((ratios[rows] + ratios[columns]) / 2)
    value = float(np.exp(np.median(averages)))
    left_out = _num_left_out(len(ratios), tail)
    if left_out == 0:
        return Interval(value=value, low=0.0, high=math.inf)
    return Interval(value=value, low=float(np.exp(averages[left_out - 1])), high=float(np.exp(averages[-left_out])))


def _ratio_of_means(first: Floats, second: Floats, tail: float) -> Interval:
    """Return the ratio of the means of all rounds, with Student's interval of its logarithm."""
    from scipy.special import stdtrit

    value = float(np.mean(first) / np.mean(second))
    if _num_left_out(len(first), tail) == 0:
        return Interval(value=value, low=0.0, high=math.inf)
    deviations = first / np.mean(first) - second / np.mean(second)
    error = float(stdtrit(len(first) - 1, 1 - tail) * np.std(deviations, ddof=1)) / math.sqrt(len(first))
    return Interval(value=value, low=value * math.exp(-error), high=value * math.exp(error))


# ROUNDS AS UNITS. The steps of a block share the disturbances of their time, so do consecutive blocks, and the whole
# machine may drift: no step is independent of the others. But the order of the contestants is drawn at random in each
# round, independently of all other rounds. So if two contestants are the same, each round's ratio is as likely to be
# the inverse, for any noise: the signs are fair coins, and the signed-rank test is exact for any number of rounds. A
# bootstrap of twelve rounds is not exact: at a nominal 5 %, it claims a difference in 1 % to 8 % of cases, depending on
# the noise.
#
# Means are another matter. Of two contestants with the same mean, one may wait now and then for long and the other
# often for a little. In most rounds the first is faster, so the signed-rank test finds a difference: where a tenth of
# the steps wait, in 8 % of cases, and where a fiftieth do, in 32 %. Student's interval of the ratio of the means does
# so in 4 % and 10 % (12 rounds of 10 steps); in 24 rounds, or with 40 steps each, in 3 % to 6 %.


def min_rounds(confidence: float = CONFIDENCE) -> int:
    """Return the fewest rounds that an interval needs: with fewer, all rounds may agree by chance."""
    # A small tolerance, because 1 - 0.95 is not exactly 0.05.
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def _num_left_out(num_rounds: int, tail: float) -> int:
    """Return the k for which the interval ends at the k-th smallest and the k-th largest average; 0 if there is none.

    It is the largest k for which the sum of positive ranks is below k with a probability of at most `tail`.
    """
    # The probability of each sum of positive ranks.
    ways = np.zeros(num_rounds * (num_rounds + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, num_rounds + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
        ways /= 2.0
    return int(np.searchsorted(np.cumsum(ways), tail + 1e-12, side="right"))
