"""What trees leave of the trials, as a smooth function of the features: a Gaussian process in standard deviations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosync.simulators.learned.residuals import Residuals, residuals_of
from autosync.simulators.shared.arrays import Floats

_FARTHEST = 4.0
"""A feature that is more standard deviations away than that from the mean of the trials is taken to be no farther."""

_TYPICAL = 2.0 * math.sqrt(2.0)
"""How far two trials are from one another (the root of the mean square), beside the lengths that `residuals` knows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standard:
    """Features as vectors: those in which the trials differ, each as standard deviations from their mean."""

    differing: npt.NDArray[np.bool_]
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, values: Floats) -> Standard:
        """By the features of trials, of which there is one at least."""
        differing = values.std(axis=0) > 1e-9
        chosen = values[:, differing]
        return cls(differing=differing, centre=chosen.mean(axis=0), spread=chosen.std(axis=0))

    def vectors(self, values: Floats) -> Floats:
        """A row a strategy."""
        deviations = np.clip((values[:, self.differing] - self.centre) / self.spread, -_FARTHEST, _FARTHEST)
        vectors: Floats = deviations * (_TYPICAL / math.sqrt(2.0 * max(1, len(self.centre))))
        return vectors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Smoothed:
    """Corrects each strategy by what was left of those like it."""

    standard: Standard
    residuals: Residuals

    @classmethod
    def of(cls, values: Floats, left: Floats) -> Smoothed:
        """From the features of trials and what is left of the logarithm of each."""
        standard = Standard.of(values)
        return cls(standard=standard, residuals=residuals_of(standard.vectors(values), left))

    def correct(self, values: Floats) -> Floats:
        """What is added to the log of seconds of each row."""
        correction, _ = self.residuals.correct(self.standard.vectors(values))
        return correction
