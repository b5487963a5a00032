"""Turns strategies into rows of features, many at once.

Reading a strategy (lowering it, calling the other simulators) takes the time. `features` then makes columns from the
readings, for all groups of features or for some. All seconds of a strategy are shares of the time that the best of the
other simulators predicts for it, so they have the same meaning for every model and cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.analytical.totals import TOTALS
from autosync.simulators.features.choices import CHOICES, choice_features, complexity
from autosync.simulators.features.context import CONTEXT, Scales, context_features, scales_of
from autosync.simulators.interface import Simulator
from autosync.simulators.large_clusters import most_detailed
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.shared.costs import usual_costs
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy

FeatureGroup = Literal["analytical", "timeline"]
GROUPS: frozenset[FeatureGroup] = frozenset(get_args(FeatureGroup))
"""The optional groups of features, from other simulators. Those of model, cluster and strategy are always included."""

_SECONDS = (
    "link_seconds",
    "mean_link_seconds",
    "processor_seconds",
    "thread_seconds",
    "lane_seconds",
    "wire_seconds",
    "fixed_seconds",
    "tail_seconds",
)
_COUNTS = ("num_rounds", "num_transfers", "num_slices", "num_lanes")
_ELEMENTS = ("tail_elements", "users_elements")
_DIGITS = 7


class Read(NamedTuple):
    """The readings of strategies, a row for each."""

    choices: Floats
    totals: Floats
    analytical_seconds: Floats
    timeline_seconds: Floats
    complexity: Floats


class Features(NamedTuple):
    """The features, a row for each strategy.

    `seconds` is the best prediction of the others, which a learned simulator corrects.
    """

    values: Floats
    seconds: Floats
    complexity: Floats


class StrategyReader:
    """Reads strategies for one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None) -> None:
        self._model = model
        self._cluster = cluster
        costs = costs or usual_costs(cluster)
        self._scales: Scales = scales_of(model, cluster)
        self._context = np.array(list(context_features(model, cluster, costs).values()))
        self._num_elements = sum(variable.num_elements for variable in model.variables)
        self._num_bytes = model.num_bytes * cluster.num_workers
        self._analytical = AnalyticalSimulator(model, cluster, costs=costs)
        self._timeline: Simulator = most_detailed(model, cluster, costs=costs)

    def read(self, strategies: Sequence[Strategy]) -> Read:
        """Return the readings of strategies, in their order."""
        count = len(strategies)
        totals = self._analytical.totals(strategies)
        choices = [list(choice_features(one, self._model, self._cluster).values()) for one in strategies]
        return Read(
            choices=np.array(choices).reshape(count, len(CHOICES)),
            totals=totals,
            analytical_seconds=totals[:, TOTALS.index("seconds")],
            timeline_seconds=np.array([one.seconds for one in self._timeline.predict(strategies)]),
            complexity=np.array([complexity(strategy) for strategy in strategies]),
        )

    def features(self, read: Read, groups: frozenset[FeatureGroup] = GROUPS) -> Features:
        """Return the features of readings, with columns in the order of `feature_names`."""
        count = len(read.complexity)
        scales = self._scales
        if "timeline" in groups:
            seconds = read.timeline_seconds
        elif "analytical" in groups:
            seconds = read.analytical_seconds
        else:
            seconds = np.full(count, scales.bound)
        columns = [np.tile(self._context, (count, 1)), read.choices]
        if groups:
            columns.append(np.stack((np.log(seconds / scales.bound), scales.compute / seconds), axis=1))
        if "analytical" in groups:
            columns += self._of_totals(read.totals, seconds)
        if groups == GROUPS:
            columns.append(np.log(read.analytical_seconds / seconds)[:, None])
        # Rounded, because sums that differ only in the order of their terms must give the same number.
        return Features(np.round(np.concatenate(columns, axis=1), _DIGITS), seconds, read.complexity)

    def _of_totals(self, totals: Floats, seconds: Floats) -> list[Floats]:
        """Return times as shares of the predicted step, counts as logarithms, and sizes as shares of the model."""
        return [
            totals[:, _places(_SECONDS)] / seconds[:, None],
            np.log2(1 + totals[:, _places(_COUNTS)]),
            totals[:, _places(_ELEMENTS)] / self._num_elements,
            totals[:, _places(("sent_bytes",))] / self._num_bytes,
        ]


def feature_names(groups: frozenset[FeatureGroup] = GROUPS) -> tuple[str, ...]:
    """Return the names of the columns of features."""
    of_totals = "analytical" in groups
    names = [*CONTEXT, *CHOICES]
    names += ["predicted.over_bound", "predicted.compute"] if groups else []
    names += [f"analytical.{name}" for name in (*_SECONDS, *_COUNTS, *_ELEMENTS, "sent_bytes")] if of_totals else []
    names += ["predicted.analytical"] if groups == GROUPS else []
    return tuple(names)


def _places(names: Sequence[str]) -> list[int]:
    return [TOTALS.index(name) for name in names]
