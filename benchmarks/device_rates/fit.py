"""Fits the shares of the table of devices to throughputs of training.

A share of a device in one precision is the product of a share that all devices have in that precision, a factor of its
family, and one of its own. Without points that tell otherwise, a factor is 1. So a device with few points, or with
none, has the shares of its family. `SPREADS` says how far factors may be from 1, as standard deviations of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autosync.specs.profile.known_devices import SHARES, KnownDevice, memory_share
from autosync.specs.profile.operations import CLASSES
from benchmarks.device_rates.points import PRECISIONS, TablePrecision, ThroughputPoint, shares_of

Floats = npt.NDArray[np.float64]
Row = tuple[str, TablePrecision]

NOISE = 0.1
"""Published throughputs of one network on one device differ by so much, as a standard deviation of logarithms."""

TYPICAL: Mapping[str, tuple[float, float, float]] = {
    # The share that is expected before any point, the spread of a family and of a device, and the highest share.
    "product": (0.5, 0.5, 1.0),
    "batched_product": (0.3, 0.4, 1.0),
    "convolution": (0.4, 0.5, 1.0),
    "convolution_3x3": (0.5, 0.5, 2.0),
    "grouped_convolution": (0.1, 0.5, 1.0),
    "memory": (0.7, 0.2, 1.0),
    # Statistics of a batch need further passes over it.
    "batch_norm_memory": (0.45, 0.2, 1.0),
    "grouped_convolution_memory": (0.4, 0.4, 1.0),
}
_PRIOR = np.log([TYPICAL[name][0] for name in SHARES])
_SPREAD = np.array([TYPICAL[name][1] for name in SHARES])
_HIGHEST = np.log([TYPICAL[name][2] for name in SHARES])
_PRIOR_SPREAD = 1.0
_OVER = 0.02
"""How far a logarithm may lie above the highest, which counts in its place."""

_MOST_STEPS = 200
_LEAST_GAIN = 1e-5
_MOST_DAMPING = 1e6

_ARITHMETIC_AT = np.array([SHARES.index(kind) if kind in SHARES and kind != "memory" else -1 for kind in CLASSES])
_MEMORY_AT = np.array([SHARES.index(memory_share(kind)) for kind in CLASSES])
_NUM = len(SHARES)


class SharesFit:
    """The problem of fitting all rows at once, by least squares with its own derivatives."""

    def __init__(self, points: Sequence[ThroughputPoint], devices: Sequence[KnownDevice]) -> None:
        self.rows: list[Row] = [
            (device.name, precision) for device in devices for precision in PRECISIONS if shares_of(device, precision)
        ]
        families = {device.name: device.family for device in devices}
        groups = list(dict.fromkeys((families[name], precision) for name, precision in self.rows))
        self._precision_of = np.array([PRECISIONS.index(precision) for _, precision in self.rows])
        self._group_of = np.array([groups.index((families[name], precision)) for name, precision in self.rows])
        self._sizes = (len(PRECISIONS), len(groups), len(self.rows))
        self._works = [(self.rows.index(point.row), *_work(point), math.log(point.seconds)) for point in points]

    def shares(self) -> dict[Row, Floats]:
        """Return the shares of all rows, in the order of `SHARES`."""
        begin = np.concatenate([np.tile(_PRIOR, self._sizes[0]), np.zeros(_NUM * sum(self._sizes[1:]))])
        logs = self._logs(self._best(begin))
        return dict(zip(self.rows, np.exp(np.minimum(logs, _HIGHEST)), strict=True))

    def _best(self, point: Floats) -> Floats:
        """Return the factors with the least squares (Levenberg-Marquardt)."""
        damping, residuals = 1e-3, self._residuals(point)
        for _ in range(_MOST_STEPS):
            slopes = self._slopes(point)
            curvature = slopes.T @ slopes
            while damping < _MOST_DAMPING:
                damped = curvature + damping * np.diag(np.diag(curvature))
                moved = point - np.linalg.solve(damped, slopes.T @ residuals)
                found = self._residuals(moved)
                gained = 1 - (found @ found) / (residuals @ residuals)
                if gained > 0:
                    break
                damping *= 4
            else:
                return point
            point, residuals, damping = moved, found, damping / 4
            if gained < _LEAST_GAIN:
                return point
        return point

    def _parts(self, point: Floats) -> list[Floats]:
        ends = np.cumsum(np.array(self._sizes) * _NUM)[:-1]
        return [part.reshape(-1, _NUM) for part in np.split(point, ends)]

    def _logs(self, point: Floats) -> Floats:
        common, groups, own = self._parts(point)
        found: Floats = common[self._precision_of] + groups[self._group_of] + own
        return found

    def _residuals(self, point: Floats) -> Floats:
        logs = self._logs(point)
        shares = np.exp(np.minimum(logs, _HIGHEST))
        errors = [
            (predicted_log(work, shares[row])[0] - log_seconds) / NOISE for row, *work, log_seconds in self._works
        ]
        common, groups, own = self._parts(point)
        return np.concatenate(
            [
                errors,
                ((common - _PRIOR) / _PRIOR_SPREAD).ravel(),
                (groups / _SPREAD).ravel(),
                (own / _SPREAD).ravel(),
                (np.maximum(0.0, logs - _HIGHEST) / _OVER).ravel(),
            ]
        )

    def _slopes(self, point: Floats) -> Floats:
        logs = self._logs(point)
        shares = np.exp(np.minimum(logs, _HIGHEST))
        of_points = np.zeros((len(self._works), len(self.rows), _NUM))
        for number, (row, *work, _) in enumerate(self._works):
            of_points[number, row] = np.where(logs[row] < _HIGHEST, predicted_log(work, shares[row])[1], 0.0) / NOISE
        over = np.zeros((logs.size, len(self.rows), _NUM))
        flat = (logs > _HIGHEST).ravel() / _OVER
        over.reshape(logs.size, -1)[np.arange(logs.size), np.arange(logs.size)] = flat
        widths = [np.full(self._sizes[0] * _NUM, _PRIOR_SPREAD), *(np.tile(_SPREAD, size) for size in self._sizes[1:])]
        return np.concatenate(
            [self._spread_out(of_points), np.diag(1 / np.concatenate(widths)), self._spread_out(over)]
        )

    def _spread_out(self, of_rows: Floats) -> Floats:
        """Return derivatives by all factors from those by the logarithms of rows."""
        parts = []
        for size, places in zip(self._sizes[:2], (self._precision_of, self._group_of), strict=True):
            part = np.zeros((len(of_rows), size, _NUM))
            for row, place in enumerate(places.tolist()):
                part[:, place] += of_rows[:, row]
            parts.append(part.reshape(len(of_rows), -1))
        return np.concatenate([*parts, of_rows.reshape(len(of_rows), -1)], axis=1)


def predicted_log(work: Sequence[Floats], shares: Floats) -> tuple[float, Floats]:
    """Return the logarithm of the predicted seconds, and its derivative by the logarithm of each share."""
    kinds, arithmetic, memory = work
    at = kinds.astype(np.intp)
    by_arithmetic = np.where(_ARITHMETIC_AT[at] >= 0, arithmetic / shares[_ARITHMETIC_AT[at]], 0.0)
    by_memory = memory / shares[_MEMORY_AT[at]]
    seconds = np.maximum(by_arithmetic, by_memory)
    used = np.where(by_arithmetic > by_memory, _ARITHMETIC_AT[at], _MEMORY_AT[at])
    total = float(seconds.sum())
    return math.log(total), -np.bincount(used, weights=seconds, minlength=_NUM) / total


def _work(point: ThroughputPoint) -> tuple[Floats, Floats, Floats]:
    """Return the class of each operation, and its seconds at the peak rates of arithmetic and of memory."""
    shares = shares_of(point.device, point.precision)
    assert shares is not None
    num_bytes = point.counts.num_bytes * (0.5 if point.precision == "mixed" else 1.0)
    return point.counts.kinds.astype(np.float64), point.counts.operations / shares.peak, num_bytes / point.device.bytes


def error_of(point: ThroughputPoint, shares: Floats) -> float:
    """Return the logarithm of predicted over published time."""
    return predicted_log(_work(point), shares)[0] - math.log(point.seconds)
