"""Intervals of predicted step times, from all sources of measured uncertainty.

The sources are the simulator's errors (`errors`), the interval of the model's profile, and the intervals of the probed
rates. They are assumed to be independent, so the squares of their logarithms are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autosync.scaling.errors import Ends
from autosync.scaling.extension import at_rate_ends
from autosync.scaling.prediction import Forecast
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

_TO_90_PERCENT = 1.645 / 1.960
"""Turns the 95 % intervals of profiles and probes into the 90 % intervals of predictions, for normal errors."""

Predict = Callable[[ModelSpec, ClusterSpec | None], float]
"""Returns the predicted seconds of one strategy on a variant of its model and cluster."""


def profile_ends(model: ModelSpec) -> tuple[ModelSpec, ...]:
    """Return the model with the shortest and with the longest compute of its profile's interval; empty without one."""
    profiled = model.timeline.profiled
    if profiled is None or not profiled.low_seconds or not profiled.high_seconds:
        return ()
    return tuple([model.dilated(one / model.step_seconds) for one in (profiled.low_seconds, profiled.high_seconds)])


def forecast(seconds: float, errors: Ends | None, effects: tuple[Ends, ...]) -> Forecast:
    """Return predicted seconds with an interval from the simulator's errors and the effects of other sources.

    If the errors are unknown, there is no interval.
    """
    if errors is None:
        return Forecast(value=seconds)
    below = math.hypot(min(errors.low, 0.0), *(min(one.low, 0.0) for one in effects))
    above = math.hypot(max(errors.high, 0.0), *(max(one.high, 0.0) for one in effects))
    return Forecast(value=seconds, low=seconds * math.exp(-below), high=seconds * math.exp(above))


def effects_of(seconds: float, model: ModelSpec, cluster: ClusterSpec | None, predict: Predict) -> tuple[Ends, ...]:
    """Return how far the intervals of the profile and of the probe move the predicted seconds.

    Without a cluster, only the profile counts.
    """
    models = profile_ends(model)
    clusters = at_rate_ends(cluster) if cluster is not None else ()
    ends = [[predict(one, cluster) for one in models], [predict(model, one) for one in clusters]]
    return tuple([_effect(seconds, moved) for moved in ends if moved])


def _effect(seconds: float, ends: list[float]) -> Ends:
    moved = [_TO_90_PERCENT * math.log(one / seconds) for one in ends]
    return Ends(min(moved), max(moved))
