"""The accuracy of predictions against measurements: their order, their seconds, and the cost of trusting them.

Only pairs count whose measurements show which one is faster: each figure has an interval, and two overlapping intervals
are a tie. An interval covers only one trial; another trial of the same strategy may differ by more. If strategies
were measured repeatedly, this difference is known (`noise_of`), and no interval is taken to be narrower. Disturbed
records are ignored.

Among equal predictions the slowest strategy counts as the pick, and a pair of them counts as half right. So a simulator
that predicts the same for all gains nothing from the order of the list.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autosync.datasets.machine_drift import combination_of
from autosync.datasets.reliability import is_disturbed
from autosync.datasets.schema import Measurement, Record
from autosync.simulators.shared.arrays import Floats


class Measured(NamedTuple):
    """The measurements, a row for each strategy: step times and the ends of their intervals."""

    seconds: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The accuracy over `num_strategies` strategies, of whose pairs `num_pairs` are not ties. Unknown figures are None.

    - `pair_ranking`: the share of these pairs that are predicted in the right order;
    - `kendall_tau`: over all pairs, with its correction for equal values (tau-b);
    - `median_error`, `p90_error`: of the predicted seconds, as a share of the measured;
    - `top_regret`: by which share the predicted fastest is slower than the true fastest;
      `top5_regret`: the same for the best of the five predicted fastest.
    """

    num_strategies: int
    num_pairs: int
    pair_ranking: float | None
    kendall_tau: float | None
    median_error: float | None
    p90_error: float | None
    top_regret: float | None
    top5_regret: float | None


def measured_of(measurements: Sequence[Measurement], *, noise: float = 0.0) -> Measured:
    """Return measurements as columns; each interval extends by at least the share `noise` to either side."""
    return measured_of_trials([(one,) for one in measurements], noise=noise)


def measured_of_trials(strategies: Sequence[Sequence[Measurement]], *, noise: float = 0.0) -> Measured:
    """Return a row for each strategy: the geometric mean of its trials, and an interval for all of them together."""
    seconds, low, high = np.array([_together(trials) for trials in strategies], dtype=np.float64).reshape(-1, 3).T
    least = (1 + noise) ** np.array([len(trials) ** -0.5 for trials in strategies], dtype=np.float64)
    return Measured(seconds, np.minimum(low, seconds / least), np.maximum(high, seconds * least))


def _together(trials: Sequence[Measurement]) -> tuple[float, float, float]:
    """Return the geometric mean of some trials and the ends of its interval. The trials are taken as independent."""
    seconds = geometric_mean(one.median_seconds for one in trials) if len(trials) > 1 else trials[0].median_seconds
    below = math.hypot(*(math.log(one.median_seconds / one.low_seconds) for one in trials)) / len(trials)
    above = math.hypot(*(math.log(one.high_seconds / one.median_seconds) for one in trials)) / len(trials)
    return seconds, seconds * math.exp(-below), seconds * math.exp(above)


def noise_of(records: Iterable[Record]) -> float:
    """Return how much trials of the same strategy differ, as a share; 0 if none was measured twice.

    It is half the width of a 95 % interval, from the deviations of trials from the median of those of the same strategy
    on the same model and cluster. It uses the median of the deviations, so that a few outliers do not turn all other
    pairs into ties.
    """
    trials: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for record in records:
        if record.measurement is not None and record.strategy_id is not None and not is_disturbed(record):
            key = (*combination_of(record), record.strategy_id)
            trials[key].append(math.log(record.measurement.median_seconds))
    deviations: list[float] = []
    for found in trials.values():
        centre = median(found)
        # The median of n numbers is nearer to them than their true centre is.
        factor = math.sqrt(len(found) / max(1, len(found) - 1))
        deviations += [abs(one - centre) * factor for one in found] if len(found) > 1 else []
    # 1.4826 converts the median of absolute deviations to a standard deviation.
    return math.expm1(1.96 * 1.4826 * median(deviations)) if deviations else 0.0


def clear_pairs(measured: Measured) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the pairs that are not ties, the faster one first."""
    faster, slower = np.nonzero(measured.high[:, None] < measured.low[None, :])
    return faster, slower


def accuracy_of(measured: Measured, predicted: Floats) -> Accuracy:
    """Return the accuracy of predicted seconds."""
    count = len(measured.seconds)
    assert len(predicted) == count, "one prediction a measurement"
    faster, slower = clear_pairs(measured)
    difference = np.sign(predicted[slower] - predicted[faster])
    errors = np.abs(predicted / measured.seconds - 1) if count else np.empty(0)
    return Accuracy(
        num_strategies=count,
        num_pairs=len(faster),
        pair_ranking=float(np.mean((difference + 1) / 2)) if len(faster) else None,
        kendall_tau=_kendall_tau(measured.seconds, predicted),
        median_error=float(np.median(errors)) if count else None,
        p90_error=float(np.quantile(errors, 0.9)) if count else None,
        top_regret=_regret(measured.seconds, predicted, 1) if count else None,
        top5_regret=_regret(measured.seconds, predicted, 5) if count else None,
    )


def mean_accuracy(parts: Sequence[Accuracy]) -> Accuracy:
    """Return the mean of several accuracies with equal weight; the numbers of strategies and pairs are summed."""

    def mean(name: str) -> float | None:
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return float(np.mean(values)) if values else None

    return Accuracy(
        num_strategies=sum(part.num_strategies for part in parts),
        num_pairs=sum(part.num_pairs for part in parts),
        pair_ranking=mean("pair_ranking"),
        kendall_tau=mean("kendall_tau"),
        median_error=mean("median_error"),
        p90_error=mean("p90_error"),
        top_regret=mean("top_regret"),
        top5_regret=mean("top5_regret"),
    )


def _kendall_tau(first: Floats, second: Floats) -> float | None:
    rows, columns = np.triu_indices(len(first), 1)
    signs = [np.sign(values[rows] - values[columns]) for values in (first, second)]
    distinct = [float(np.count_nonzero(sign)) for sign in signs]
    if not all(distinct):
        return None
    return float(np.sum(signs[0] * signs[1])) / math.sqrt(distinct[0] * distinct[1])


def _regret(seconds: Floats, predicted: Floats, count: int) -> float:
    picked = np.lexsort((-seconds, predicted))[:count]
    return float(np.min(seconds[picked]) / np.min(seconds) - 1)
