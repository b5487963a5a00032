"""What a simulator gets wrong, learned from what was measured: a Gaussian process over strategies.

A simulator that is off by a tenth for one strategy is off by about as much for those like it. So the logarithms of
measured over predicted seconds are taken for a smooth function of vectors that stand for the strategies, which gives
each new strategy a correction, and an uncertainty that grows with its distance from all that was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autosync.simulators.shared.arrays import Floats

NOISE = 0.015
"""Standard deviation of the logarithm of a measured median."""

UNMEASURED_SPREAD = 0.1
"""How far off a simulator is taken to be before anything was measured."""

SPREADS = (0.02, 0.25)
"""Between these lies how far off it is taken to be afterwards."""

LENGTHS = (0.35, 0.7, 1.4, 2.8)
"""Distances over which strategies are alike: the likeliest is taken."""

FEW = 6
"""With fewer measurements than this the length is not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Corrections by what was measured.

    `vectors` has a row for each measured strategy, `errors` what the logarithm of its time is above `offset`, which all
    have in common. `spread` is how far errors are from 0, `length` the distance over which strategies are alike.
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
        """What is to be added to the logarithm of each prediction, and its standard deviation."""
        across = _kernel(distances(vectors, self.vectors), self.spread, self.length)
        known = np.linalg.solve(self._lower, across.T)
        variance = np.maximum(self.spread**2 - (known**2).sum(axis=0), 0.0)
        return self.offset + across @ self._weights, np.sqrt(variance)

    def believing(self, vector: Floats) -> Residuals:
        """The same, as if one more strategy had been measured and come out as corrected: nothing is learned of it."""
        correction, _ = self.correct(vector[None, :])
        errors = np.append(self.errors, correction - self.offset)
        return replace(self, vectors=np.vstack([self.vectors, vector]), errors=errors)


def residuals_of(vectors: Floats, errors: Floats) -> Residuals:
    """The corrections where the measured strategies have these vectors and these log(measured / predicted)."""
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
    """From each row of one to each row of the other."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :] - 2 * first @ second.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)), dtype=np.float64)


def _kernel(far: Floats, spread: float, length: float) -> Floats:
    """Matérn 3/2: smooth, but not so much that one odd strategy bends all others."""
    scaled = np.sqrt(3.0) * far / length
    return np.asarray(spread**2 * (1.0 + scaled) * np.exp(-scaled), dtype=np.float64)


def _factor(far: Floats, spread: float, length: float) -> Floats:
    return np.asarray(np.linalg.cholesky(_kernel(far, spread, length) + NOISE**2 * np.eye(len(far))), dtype=np.float64)


def _likelihood(lower: Floats, errors: Floats) -> float:
    fit = np.linalg.solve(lower, errors)
    return float(-0.5 * fit @ fit - np.log(np.diag(lower)).sum())
