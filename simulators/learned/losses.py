"""What a ranker is trained for: gradients of losses in the logarithm of seconds, noise and all.

Each row has a measured logarithm of seconds with an interval, and belongs to a group of one model on one cluster; only
rows of one group are compared. A loss is told to XGBoost by its gradient and its second derivative. XGBoost has ranking
losses of its own, but they know only grades: two rows have the same or they do not. Whether two measurements are a tie
depends on both their intervals, so ties are not grades.

- `Seconds`: squared errors; what makes a ranker's scores seconds. The other two have a little of it.
- `Pairwise`: logistic, over pairs. Of two whose intervals are apart the faster should be predicted to be. Of two whose
  intervals overlap the simpler strategy should, but by little.
- `Listwise`: how probable it is of each row of a group to be the fastest, against what was measured (ListNet); so what
  matters most is that the fast ones are in order.
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
"""A difference of 4 % (a 25th) in prediction makes the odds of a pair e : 1."""
LIST_SHARPNESS = 10.0
ANCHOR = 0.2
"""How much a squared error weighs beside a comparison."""
TIE_WEIGHT = 0.1
TIE_SIMPLER = 0.6
"""Of a tie, how probable the simpler one is to be called the faster."""
MAX_PARTNERS = 48
"""Each row is compared with so many others of its group at the most."""


class Targets(NamedTuple):
    """What was measured, as logarithms of seconds; `group` and `weight` of each row, and how complicated it is."""

    log_seconds: Floats
    log_low: Floats
    log_high: Floats
    complexity: Floats
    group: Positions
    weight: Floats

    def rows(self, chosen: Positions) -> Targets:
        """Some of the rows."""
        return Targets._make(column[chosen] for column in self)


class Loss(Protocol):
    """A loss of predicted logarithms of seconds."""

    def gradients(self, predicted: Floats) -> tuple[Floats, Floats]:
        """The gradient and the second derivative of each row."""


def loss_of(name: LossName, targets: Targets, *, seed: int, knows_ties: bool = True) -> Loss:
    """The loss of that name. Without `knows_ties` whatever took longer counts as slower, by however little."""
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
        # Beyond 30 % an error counts in proportion only: a few wild rows are not worth all the others.
        error = np.clip(predicted - self._wanted, -0.3, 0.3)
        return self._weight * error, self._weight.copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pairs:
    """Rows side by side: how probable it is that the first is called the faster, and how much the pair weighs."""

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
        # Divided by the square of the sharpness: as steep as a squared error, so that the anchor has its weight.
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
    """How probable each row is to be the fastest of its group."""
    least = np.full(group.max(initial=-1) + 1, np.inf)
    np.minimum.at(least, group, log_seconds)
    powers = np.exp(-LIST_SHARPNESS * (log_seconds - least[group]))
    shares: Floats = powers / np.bincount(group, powers)[group]
    return shares


def _pairs_of(targets: Targets, *, seed: int, knows_ties: bool) -> _Pairs:
    """Pairs within groups, each once; of large groups, a draw of them."""
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
    # Each row weighs as much as it would alone, in however many pairs it is.
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
