"""What is believed of the errors of predictions, as multiples of their spread.

A prediction is the logarithm of a step time with a spread, and its *standardised error* is the logarithm of measured
over predicted seconds, divided by the spread. If spreads were right, these errors would have mean 0 and standard
deviation 1. For the strategies that a search picks this need not hold: they were picked because their predictions are
short, and predictions for one target share a part of their error. So mean and standard deviation are unknown, and every
trial says something about both: a normal distribution with its conjugate prior (normal-inverse-chi-squared). The next
error then has Student's t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autosync.documents import STRICT
from autosync.simulators.shared.arrays import Floats

FARTHEST = 6.0
"""The largest standardised error that is believed; one broken trial must not hide all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBelief:
    """The belief about standardised errors.

    `bias` is their mean, known as well as `bias_weight` errors would tell it. `scale` is their standard deviation,
    known as well as `scale_weight` errors would tell it. `reach` is the share by which the fastest strategy of all is
    believed to be faster than the best so far, in the mean (`reach.py`); None if nothing is known about it.
    """

    __pydantic_config__ = STRICT

    bias: float
    bias_weight: float
    scale: float
    scale_weight: float
    reach: float | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.bias, self.bias_weight, self.scale, self.scale_weight))):
            raise ValueError("a figure that is no number (finite numbers)")
        if min(self.bias_weight, self.scale, self.scale_weight) <= 0:
            raise ValueError("weights and the scale are above 0")
        if self.reach is not None and not 0 < self.reach < math.inf:
            raise ValueError(f"reach {self.reach} (finite, and above 0)")

    def after(self, errors: Sequence[float]) -> ErrorBelief:
        """Return the belief after further standardised errors. Their order does not matter."""
        count = len(errors)
        if count == 0:
            return self
        believed = np.clip(np.asarray(errors, dtype=np.float64), -FARTHEST, FARTHEST)
        mean = float(believed.mean())
        squares = float(((believed - mean) ** 2).sum())
        shift = self.bias_weight * count / (self.bias_weight + count) * (mean - self.bias) ** 2
        scale_weight = self.scale_weight + count
        return ErrorBelief(
            bias=(self.bias_weight * self.bias + count * mean) / (self.bias_weight + count),
            bias_weight=self.bias_weight + count,
            scale=math.sqrt((self.scale_weight * self.scale**2 + squares + shift) / scale_weight),
            scale_weight=scale_weight,
            reach=self.reach,
        )

    def reaching(self, reach: float | None) -> ErrorBelief:
        """Return the belief with another reach."""
        return replace(self, reach=reach)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the interval that holds the next standardised error with this confidence."""
        from scipy.special import stdtrit

        half = self._next_scale * float(stdtrit(self.scale_weight, (1 + confidence) / 2))
        return self.bias - half, self.bias + half

    def chances_below(self, deviations: Floats) -> Floats:
        """Return the chance that an error is below each of these, given as multiples of the scale from the bias."""
        from scipy.special import stdtr

        found: Floats = stdtr(self.scale_weight, deviations)
        return found

    def biases(self) -> tuple[tuple[float, float], ...]:
        """Return values that the bias may have, each with its chance (Gauss-Hermite quadrature)."""
        width = math.sqrt(2 / self.bias_weight) * self.scale
        return tuple((self.bias + width * node, weight) for node, weight in _NODES)

    @property
    def _next_scale(self) -> float:
        """The scale of the next error, of which the bias is uncertain too."""
        return self.scale * math.sqrt(1 + 1 / self.bias_weight)


def fitted(groups: Sequence[Sequence[float]]) -> ErrorBelief:
    """Return the belief under which these errors are most likely. Each group has those of one target, in their order.

    Each error is held against the belief after the errors before it in its group, as in a search.
    """
    from scipy.optimize import minimize

    errors = np.full((len(groups), max(map(len, groups))), np.nan)
    for row, group in zip(errors, groups, strict=True):
        row[: len(group)] = np.clip(group, -FARTHEST, FARTHEST)
    typical, width = float(np.nanmedian(errors)), max(float(np.nanstd(errors)), 0.1)
    begin = np.array([typical, 1.0, math.log(width), 1.5])
    best = minimize(
        lambda point: -log_likelihood(_belief_at(point), errors),
        begin,
        method="Nelder-Mead",
        options={"maxiter": 500, "xatol": 1e-3, "fatol": 1e-3},
    )
    return _belief_at(best.x)


def log_likelihood(belief: ErrorBelief, errors: Floats) -> float:
    """Return how likely errors are. Each row has those of one target, each after those before it; NaN ends a row."""
    from scipy.special import gammaln

    known = ~np.isnan(errors)
    filled = np.where(known, errors, 0.0)
    count = np.cumsum(known, axis=1) - known
    total = np.cumsum(filled, axis=1) - filled
    squares = np.cumsum(filled**2, axis=1) - filled**2
    mean = total / np.maximum(count, 1)
    weight, freedom = belief.bias_weight + count, belief.scale_weight + count
    shift = belief.bias_weight * count / weight * (mean - belief.bias) ** 2
    variance = (belief.scale_weight * belief.scale**2 + squares - count * mean**2 + shift) / freedom * (1 + 1 / weight)
    bias = (belief.bias_weight * belief.bias + total) / weight
    logs = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * np.log(freedom * math.pi * variance)
    logs -= (freedom + 1) / 2 * np.log1p((filled - bias) ** 2 / variance / freedom)
    return float(np.sum(logs[known]))


def _belief_at(point: Floats) -> ErrorBelief:
    weight, scale, freedom = np.exp(np.clip(point[1:], _LOWEST, _HIGHEST)).tolist()
    return ErrorBelief(bias=float(point[0]), bias_weight=weight, scale=scale, scale_weight=freedom)


_LOWEST, _HIGHEST = (
    np.array([math.log(0.5), math.log(0.05), math.log(3.0)]),
    np.array([math.log(50.0), math.log(5.0), math.log(50.0)]),
)
"""The limits of the logarithms of `bias_weight`, `scale` and `scale_weight` that are fitted."""


def _nodes() -> tuple[tuple[float, float], ...]:
    nodes, weights = np.polynomial.hermite.hermgauss(7)
    return tuple(zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True))


_NODES = _nodes()
