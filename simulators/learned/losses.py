"""The losses of rankers: gradients in the logarithm of seconds that respect the noise of measurements.

Each row has a measured logarithm of seconds with an interval, and belongs to a group of one model on one cluster. Only
rows of one group are compared. XGBoost gets a loss as its gradient and its second derivative. XGBoost's own ranking
losses know only grades, which two rows either share or not. But whether two measurements are a tie depends on both
intervals, so ties are not grades.

- `Seconds`: squared errors, which turn a ranker's scores into seconds. The other two include a little of it.
- `Pairwise`: logistic, over pairs. If two intervals are apart, the faster strategy should be predicted as faster. If
  they overlap, the simpler one should, with a small weight.
- `Listwise`: the probability of each row to be the fastest of its group, against the measurements (ListNet). So the
  order of the fast rows matters most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from autosync.simulators.shared.arrays import Floats

Positions = npt.NDArray[np.intp]

LossName = Literal["seconds", "pairwise", "listwise"]
LOSSES: tuple[LossName, ...] = get_args(LossName)

PAIR_SHARPNESS = 25.0
"""The sharpness of pairs: a difference of 4 % (a 25th) in prediction gives a pair the odds e : 1."""
LIST_SHARPNESS = 10.0
ANCHOR = 0.2
"""The weight of a squared error relative to a comparison."""
TIE_WEIGHT = 0.1
TIE_SIMPLER = 0.6
"""The target probability that the simpler strategy of a tie is predicted as faster."""
MAX_PARTNERS = 48
"""The largest number of other rows of its group with which a row is compared."""


class Targets(NamedTuple):
    """The measurements as logarithms of seconds, with each row's complexity, group and weight."""

    log_seconds: Floats
    log_low: Floats
    log_high: Floats
    complexity: Floats
    group: Positions
    weight: Floats

    def rows(self, chosen: Positions) -> Targets:
        """Return some of the rows."""
        return Targets._make(column[chosen] for column in self)


class Loss(Protocol):
    """A loss of predicted logarithms of seconds."""

    def gradients(self, predicted: Floats) -> tuple[Floats, Floats]:
        """Return the gradient and the second derivative of each row."""


def loss_of(name: LossName, targets: Targets, *, seed: int, knows_ties: bool = True) -> Loss:
    """Return the loss of that name. Without `knows_ties`, any longer time counts as slower."""
    if name == "seconds":
        return _Seconds(targets)
    if name == "listwise":
        return _Listwise(targets, _Seconds(targets))
    return _Pairwise(targets, _Seconds(targets), _pairs_of(targets, seed=seed, knows_ties=knows_ties))


class _Seconds:
    def __init__(self, targets: Targets) -> None:
        self._wanted = targets.log_seconds
        self._weight = targets.weight

    def gradients(self, predicted: Floats) -> tuple[Floats, Floats]:
        # Errors beyond 30 % are limited, so that a few outliers do not outweigh all other rows.
        error = np.clip(predicted - self._wanted, -0.3, 0.3)
        return self._weight * error, self._weight.copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pairs:
    """Pairs of rows: the target probability that the first is predicted as faster, and the weight of the pair."""

    first: Positions
    second: Positions
    probability: Floats
    weight: Floats


class _Pairwise:
    def __init__(self, targets: Targets, anchor: _Seconds, pairs: _Pairs) -> None:
        self._pairs = pairs
        self._anchor = anchor
        self._count = len(targets.log_seconds)

    def gradients(self, predicted: Floats) -> tuple[Floats, Floats]:
        pairs = self._pairs
        odds = PAIR_SHARPNESS * (predicted[pairs.second] - predicted[pairs.first])
        called_faster = 1 / (1 + np.exp(-np.clip(odds, -40, 40)))
        # Divided by the sharpness, so that the curvature is that of a squared error and `ANCHOR` keeps its meaning.
        push = pairs.weight * (pairs.probability - called_faster) / PAIR_SHARPNESS
        curve = pairs.weight * called_faster * (1 - called_faster)
        gradient = self._sums(pairs.first, push) - self._sums(pairs.second, push)
        second = self._sums(pairs.first, curve) + self._sums(pairs.second, curve)
        return _anchored(gradient, second, self._anchor, predicted)

    def _sums(self, rows: Positions, values: Floats) -> Floats:
        return np.bincount(rows, values, self._count).astype(np.float64)


class _Listwise:
    def __init__(self, targets: Targets, anchor: _Seconds) -> None:
        self._group = targets.group
        self._weight = targets.weight
        self._anchor = anchor
        self._wanted = _fastest(targets.log_seconds, targets.group)
        self._sizes = np.bincount(targets.group)[targets.group]

    def gradients(self, predicted: Floats) -> tuple[Floats, Floats]:
        found = _fastest(predicted, self._group)
        scale = self._weight * self._sizes
        gradient = scale * (self._wanted - found) / LIST_SHARPNESS
        return _anchored(gradient, scale * found * (1 - found), self._anchor, predicted)


def _anchored(gradient: Floats, second: Floats, anchor: _Seconds, predicted: Floats) -> tuple[Floats, Floats]:
    first, curve = anchor.gradients(predicted)
    return gradient + ANCHOR * first, second + ANCHOR * curve


def _fastest(log_seconds: Floats, group: Positions) -> Floats:
    """Return the probability of each row to be the fastest of its group."""
    least = np.full(group.max(initial=-1) + 1, np.inf)
    np.minimum.at(least, group, log_seconds)
    powers = np.exp(-LIST_SHARPNESS * (log_seconds - least[group]))
    shares: Floats = powers / np.bincount(group, powers)[group]
    return shares


def _pairs_of(targets: Targets, *, seed: int, knows_ties: bool) -> _Pairs:
    """Return the pairs within groups, each once; a random sample for large groups."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Positions, Positions]] = []
    for number in range(targets.group.max(initial=-1) + 1):
        rows = np.flatnonzero(targets.group == number)
        first, second = np.triu_indices(len(rows), 1)
        most = len(rows) * MAX_PARTNERS // 2
        if len(first) > most:
            chosen = rng.choice(len(first), most, replace=False)
            first, second = first[chosen], second[chosen]
        found.append((rows[first], rows[second]))
    empty = np.empty(0, dtype=np.intp)
    first = np.concatenate([empty, *(one for one, _ in found)])
    second = np.concatenate([empty, *(other for _, other in found)])
    probability, weight = _ties(targets, first, second) if knows_ties else _no_ties(targets, first, second)
    weight *= np.sqrt(targets.weight[first] * targets.weight[second])
    # Normalised, so that each row has its own weight in however many pairs it occurs.
    partners = np.bincount(np.concatenate((first, second)), minlength=len(targets.group))
    weight *= 4 / np.maximum(1, partners[first] + partners[second])
    return _Pairs(first=first, second=second, probability=probability, weight=weight)


def _ties(targets: Targets, first: Positions, second: Positions) -> tuple[Floats, Floats]:
    faster = targets.log_high[first] < targets.log_low[second]
    slower = targets.log_high[second] < targets.log_low[first]
    simpler = 0.5 + (TIE_SIMPLER - 0.5) * np.sign(targets.complexity[second] - targets.complexity[first])
    probability = np.where(faster, 1.0, np.where(slower, 0.0, simpler))
    return probability, np.where(faster | slower, 1.0, TIE_WEIGHT)


def _no_ties(targets: Targets, first: Positions, second: Positions) -> tuple[Floats, Floats]:
    difference = np.sign(targets.log_seconds[second] - targets.log_seconds[first])
    return (1 + difference) / 2, np.ones(len(first))
