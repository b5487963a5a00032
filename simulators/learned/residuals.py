"""The errors of a simulator, learned from measurements: a Gaussian process over strategies.

A simulator with an error of a tenth for one strategy has about the same error for similar ones. So the logarithm of
measured over predicted seconds is modelled as a smooth function of the strategies' vectors. It gives each new strategy
a correction, and an uncertainty that grows with the distance from all measured strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autosync.simulators.shared.arrays import Floats

NOISE = 0.015
"""The standard deviation of the logarithm of a measured median."""

UNMEASURED_SPREAD = 0.1
"""The assumed error of a simulator before the first measurements."""

SPREADS = (0.02, 0.25)
"""The limits of the assumed error after measurements."""

LENGTHS = (0.35, 0.7, 1.4, 2.8)
"""The distances over which strategies are similar; the most likely one is used."""

FEW = 6
"""The number of measurements below which a fixed length is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Corrections from measured strategies.

    `vectors` has a row for each measured strategy. `errors` has the logarithms of measured over predicted time, minus
    their common `offset`. `spread` is the typical size of errors, and `length` the distance over which strategies are
    similar.
    """

    vectors: Floats
    errors: Floats
    offset: float
    spread: float
    length: float
    _lower: Floats = field(init=False)
    _weights: Floats = field(init=False)

    def __post_init__(self) -> None:
        lower = _factor(distances(self.vectors, self.vectors), self.spread, self.length)
        object.__setattr__(self, "_lower", lower)
        object.__setattr__(self, "_weights", np.linalg.solve(lower.T, np.linalg.solve(lower, self.errors)))

    def correct(self, vectors: Floats) -> tuple[Floats, Floats]:
        """Return the correction of the logarithm of each prediction, and its standard deviation."""
        across = _kernel(distances(vectors, self.vectors), self.spread, self.length)
        known = np.linalg.solve(self._lower, across.T)
        variance = np.maximum(self.spread**2 - (known**2).sum(axis=0), 0.0)
        return self.offset + across @ self._weights, np.sqrt(variance)

    def believing(self, vector: Floats) -> Residuals:
        """Return the residuals as if a strategy with this vector had been measured and the correction were right.

        Only the uncertainty changes.
        """
        correction, _ = self.correct(vector[None, :])
        errors = np.append(self.errors, correction - self.offset)
        return replace(self, vectors=np.vstack([self.vectors, vector]), errors=errors)


def residuals_of(vectors: Floats, errors: Floats) -> Residuals:
    """Return the residuals of measured strategies with these vectors and these log(measured / predicted)."""
    offset = float(np.median(errors)) if len(errors) else 0.0
    rest = errors - offset
    found = float(np.sqrt(np.mean(rest**2))) if len(errors) > 2 else UNMEASURED_SPREAD
    spread = float(np.clip(found, *SPREADS))
    length = LENGTHS[2]
    if len(errors) >= FEW:
        far = distances(vectors, vectors)
        length = max(LENGTHS, key=lambda one: _likelihood(_factor(far, spread, one), rest))
    return Residuals(vectors=vectors, errors=rest, offset=offset, spread=spread, length=length)


def distances(first: Floats, second: Floats) -> Floats:
    """Return the distances from each row of one to each row of the other."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :] - 2 * first @ second.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)), dtype=np.float64)


def _kernel(far: Floats, spread: float, length: float) -> Floats:
    """Return the Matérn 3/2 kernel: smooth, but not so smooth that one odd strategy changes all others."""
    scaled = np.sqrt(3.0) * far / length
    return np.asarray(spread**2 * (1.0 + scaled) * np.exp(-scaled), dtype=np.float64)


def _factor(far: Floats, spread: float, length: float) -> Floats:
    return np.asarray(np.linalg.cholesky(_kernel(far, spread, length) + NOISE**2 * np.eye(len(far))), dtype=np.float64)


def _likelihood(lower: Floats, errors: Floats) -> float:
    fit = np.linalg.solve(lower, errors)
    return float(-0.5 * fit @ fit - np.log(np.diag(lower)).sum())
