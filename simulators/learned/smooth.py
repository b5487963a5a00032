"""Smooths the trees' remaining errors with a Gaussian process over the features, measured in standard deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosync.simulators.learned.residuals import Residuals, residuals_of
from autosync.simulators.shared.arrays import Floats

_FARTHEST = 4.0
"""The largest distance of a feature from the mean of the trials, in standard deviations; larger ones are clipped."""

_TYPICAL = 2.0 * math.sqrt(2.0)
"""The typical distance of two trials (the root of the mean square), to fit the lengths of `residuals`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standard:
    """Turns features into vectors: only features that differ between trials, as standard deviations from their mean."""

    differing: npt.NDArray[np.bool_]
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, values: Floats) -> Standard:
        """Return the standard for the features of trials; at least one trial is needed."""
        differing = values.std(axis=0) > 1e-9
        chosen = values[:, differing]
        return cls(differing=differing, centre=chosen.mean(axis=0), spread=chosen.std(axis=0))

    def vectors(self, values: Floats) -> Floats:
        """Return a vector for each row of features."""
        deviations = np.clip((values[:, self.differing] - self.centre) / self.spread, -_FARTHEST, _FARTHEST)
        vectors: Floats = deviations * (_TYPICAL / math.sqrt(2.0 * max(1, len(self.centre))))
        return vectors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Smoothed:
    """Corrects each strategy by the remaining errors of similar strategies."""

    standard: Standard
    residuals: Residuals

    @classmethod
    def of(cls, values: Floats, left: Floats) -> Smoothed:
        """Return the correction from the features of trials and the remaining error of each logarithm."""
        standard = Standard.of(values)
        return cls(standard=standard, residuals=residuals_of(standard.vectors(values), left))

    def correct(self, values: Floats) -> Floats:
        """Return the correction of the log of seconds for each row."""
        correction, _ = self.residuals.correct(self.standard.vectors(values))
        return correction
