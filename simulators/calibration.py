"""Costs fitted to measurements: first to a probe alone, later to the trials of a study.

A simulator has a few figures that no probe finds exactly. A fit multiplies each by a factor, so that predictions come
as near to the measurements as possible. It compares logarithms of step times. It is robust: a trial that no factor
explains has little weight. A prior keeps each figure near the probe's value, more tightly if the probe knows it well.
The fit is kept only if it predicts held-out trials better than the probe alone does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autosync.datasets.schema import Measurement, Record
from autosync.documents import without_file
from autosync.errors import InputError
from autosync.simulators.shared.arrays import Floats
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

Predict = Callable[[Costs, Sequence[Strategy]], Floats]
"""Returns the predicted seconds of a step for each strategy with these costs."""

MIN_TRIALS = 8
"""The fewest trials from which some can be held out."""

MAX_TRIALS = 64
"""The largest number of trials that count, the newest ones, because each is predicted again for every parameter."""

_NUM_FOLDS = 4
_STEP = 0.1
_MAX_MOVE = 1.5
_NUM_ROUNDS = 6
# The unknown part of a step is at least this share, however well it was measured.
_FLOOR = 0.03
# Beyond this many standard deviations, a trial pulls less the further off it is: it has another cause.
_ROBUST = 1.5
# Held-out errors must fall to this share to keep a fit. Each error counts at most as much as `_LIMIT`.
_GAIN = 0.95
# A simulator that knows the model's times and the links' rates rarely has a larger common error.
_SCALE_SPREAD = 0.05
_LIMIT = 0.15
_DOUBTFUL = frozenset({"busy_machine", "drifting_machine", "stopped_early", "not_steady"})
"""Flags of trials that do not count.

Those with `busy_cpu` do: a strategy that keeps the processors busy does so in every trial, and what its messages cost
shows there alone.
"""

_NORMAL = 1.4826


class Parameter(NamedTuple):
    """A figure of `Costs` and its uncertainty: a standard deviation of its logarithm.

    A dotted name is a figure within another, such as `processor.step`.
    """

    name: str
    spread: float


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("link_share", 0.03),
    Parameter("transfer_seconds", 0.5),
    Parameter("round_seconds", 0.4),
    Parameter("native_round_seconds", 0.4),
    Parameter("local_seconds", 0.5),
    Parameter("processor.step", 0.5),
    Parameter("processor.taken", 0.7),
)
"""The parameters of the analytical simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A strategy, its measured seconds, and their uncertainty (a standard deviation of the logarithm)."""

    strategy: Strategy
    strategy_id: str
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The costs, and the error of predictions with them.

    `spread` is a standard deviation of the logarithm of held-out step times, 0 if there were too few trials to tell.
    `num_trials` is the number of trials that the costs were fitted to, 0 if they are still the probe's.
    """

    costs: Costs
    spread: float = 0.0
    num_trials: int = 0


def trials_of(records: Sequence[Record], model: ModelSpec, cluster: ClusterSpec) -> list[Trial]:
    """Return the trials to learn from: strategies that are legal here, with measurements that are not doubtful."""
    found: list[Trial] = []
    for record in records:
        measurement = record.measurement
        if measurement is None or record.strategy is None or record.strategy_id is None:
            continue
        if _DOUBTFUL & set(measurement.flags):
            continue
        try:
            strategy = parse_strategy(without_file(dict(record.strategy)))
            legality.check(strategy, model, cluster)
        except InputError:
            continue
        found.append(
            Trial(
                strategy=strategy,
                strategy_id=record.strategy_id,
                seconds=measurement.median_seconds,
                spread=_spread(measurement),
            )
        )
    return found


def calibrate(
    predict: Predict, costs: Costs, trials: Sequence[Trial], *, parameters: Sequence[Parameter] = PARAMETERS
) -> Calibrated:
    """Return the costs that explain the trials best, or `costs` if the fit does not help on held-out trials."""
    if len(trials) < MIN_TRIALS:
        return Calibrated(costs=costs)
    trials = trials[-MAX_TRIALS:]
    fit = _Fit(predict, costs, trials, parameters)
    folds = _folds(trials)
    before, after = fit.errors, np.empty(len(trials))
    for fold in range(_NUM_FOLDS):
        held_out = folds == fold
        after[held_out] = fit.errors_at(fit.solve(~held_out), held_out)
    if _off(after) > _GAIN * _off(before):
        return Calibrated(costs=costs, spread=_deviation(before))
    found = fit.solve(np.ones(len(trials), dtype=np.bool_))
    return Calibrated(costs=fit.costs_at(found), spread=_deviation(after), num_trials=len(trials))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """The factor by which measured steps are longer than predicted ones, and the error of predictions with it.

    `spread` and `num_trials` are as in `Calibrated`.
    """

    factor: float = 1.0
    spread: float = 0.0
    num_trials: int = 0


def scale(predicted: Floats, trials: Sequence[Trial]) -> TimeScale:
    """Return the factor for a simulator that is too slow for a fit: it corrects the common part of all errors.

    As with costs, it is kept only if it helps on held-out trials.
    """
    if len(trials) < MIN_TRIALS:
        return TimeScale()
    before = np.log(predicted) - np.log([trial.seconds for trial in trials])
    weight = 1.0 / np.hypot(_FLOOR, [trial.spread for trial in trials])
    folds = _folds(trials)
    after = np.empty(len(trials))
    for fold in range(_NUM_FOLDS):
        known = folds != fold
        after[~known] = before[~known] - _middle(before[known], weight[known])
    if _off(after) > _GAIN * _off(before):
        return TimeScale(spread=_deviation(before))
    return TimeScale(factor=math.exp(-_middle(before, weight)), spread=_deviation(after), num_trials=len(trials))


def _folds(trials: Sequence[Trial]) -> npt.NDArray[np.intp]:
    """Return the fold of each trial. All trials of a strategy are in the same fold."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(trial.strategy_id, len(numbers)) for trial in trials], np.intp) % _NUM_FOLDS


def _middle(errors: Floats, weight: Floats) -> float:
    """Return the common part of errors. An error that is far from the others counts little."""
    middle = 0.0
    for _ in range(_NUM_ROUNDS):
        pull = weight**2 / (1.0 + (weight * (errors - middle) / _ROBUST) ** 2)
        middle = float((pull * errors).sum() / (pull.sum() + _SCALE_SPREAD**-2))
    return middle


class _Fit:
    """Trials, the errors of their predictions, and how these errors change with each parameter.

    A point is a vector of logarithms of the parameters' factors. Errors are logarithms of predicted over measured
    seconds.
    """

    def __init__(
        self, predict: Predict, costs: Costs, trials: Sequence[Trial], parameters: Sequence[Parameter]
    ) -> None:
        self._predict = predict
        self._costs = costs
        self._parameters = parameters
        self._strategies = [trial.strategy for trial in trials]
        self._measured = np.log([trial.seconds for trial in trials])
        self._weight = 1.0 / np.hypot(_FLOOR, [trial.spread for trial in trials])
        everything = np.ones(len(trials), dtype=np.bool_)
        origin = np.zeros(len(parameters))
        self.errors = self.errors_at(origin, everything)
        slopes = []
        for index, parameter in enumerate(parameters):
            # A share of a link may be 1 already, so it is tried below.
            step = -_STEP if parameter.name.endswith("_share") else _STEP
            moved = origin.copy()
            moved[index] = step
            slopes.append((self.errors_at(moved, everything) - self.errors) / step)
        self._slopes = np.array(slopes).T

    def costs_at(self, point: Floats) -> Costs:
        """Return the costs at a point."""
        costs = self._costs
        for parameter, factor in zip(self._parameters, np.exp(point).tolist(), strict=True):
            costs = _moved(costs, parameter.name.split("."), factor)
        return costs

    def errors_at(self, point: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Return the errors of the chosen trials."""
        strategies = [self._strategies[index] for index in np.flatnonzero(chosen).tolist()]
        seconds = self._predict(self.costs_at(point), strategies)
        return np.asarray(np.log(seconds) - self._measured[chosen], dtype=np.float64)

    def solve(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Return the most likely point given the chosen trials, if errors change linearly with the parameters.

        It repeats least squares; each time, trials with large errors get less weight.
        """
        slopes, errors, weight = self._slopes[chosen], self.errors[chosen], self._weight[chosen]
        prior = np.diag([1.0 / parameter.spread**2 for parameter in self._parameters])
        point = np.zeros(len(self._parameters))
        for _ in range(_NUM_ROUNDS):
            off = np.abs(weight * (errors + slopes @ point))
            pull = weight**2 / (1.0 + (off / _ROBUST) ** 2)
            point = np.linalg.solve(slopes.T @ (pull[:, None] * slopes) + prior, -slopes.T @ (pull * errors))
        return np.clip(point, -_MAX_MOVE, _MAX_MOVE)


def _moved(value: Any, path: Sequence[str], factor: float) -> Any:
    """Return `value` with the figure at `path` multiplied; every figure of a tuple.

    A share of a link stays at most 1.
    """
    if path:
        name, *rest = path
        found = _moved(getattr(value, name), rest, factor)
        if name.endswith("_share"):
            found = min(1.0, found)
        return dataclasses.replace(value, **{name: found})
    if isinstance(value, tuple):
        return tuple([factor * one for one in value])
    return factor * value


def _spread(measurement: Measurement) -> float:
    """Return the standard deviation of the logarithm of a median, from its 95 % interval."""
    return math.log(measurement.high_seconds / measurement.low_seconds) / 3.92


def _off(errors: Floats) -> float:
    """Return the mean error of predictions. Large errors count only up to a limit."""
    return float(np.minimum(np.abs(errors), _LIMIT).mean())


def _deviation(errors: Floats) -> float:
    """Return a standard deviation that a few outliers do not change."""
    return float(_NORMAL * np.median(np.abs(errors)))
