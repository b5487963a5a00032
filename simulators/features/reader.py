"""Strategies into rows of features, many at once.

Reading a strategy (lowering it, asking the other simulators) is what takes time; `features_of` then makes columns of
what was read, of all groups or without some. All seconds of a strategy are told as shares of the time that the best of
the other simulators predicts for it, so they mean the same for every model and cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from autosync.plan.tables import tables_of
from autosync.simulators.analytical.simulator import open_analytical
from autosync.simulators.costs import costs_of, local_processors
from autosync.simulators.features.choices import CHOICES, choice_features, complexity
from autosync.simulators.features.context import CONTEXT, Scales, context_features, scales_of
from autosync.simulators.features.totals import COUNTS, SECONDS, Totals
from autosync.simulators.interface import Simulator
from autosync.simulators.lowered import lowered
from autosync.simulators.timeline.simulator import open_timeline
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy

Floats = npt.NDArray[np.float64]

Group = Literal["analytical", "timeline"]
GROUPS: frozenset[Group] = frozenset(get_args(Group))
"""Features that other simulators bring; those of model, cluster and strategy are always there."""

_DIGITS = 7


class Read(NamedTuple):
    """What was read of strategies, a row each."""

    choices: Floats
    totals: Floats
    counts: Floats
    analytical_seconds: Floats
    timeline_seconds: Floats
    complexity: Floats


class Features(NamedTuple):
    """A row a strategy. `seconds` is what learned simulators begin with: what the best of the others predicts."""

    values: Floats
    seconds: Floats
    complexity: Floats


class Reader:
    """Reads strategies for one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._model = model
        self._cluster = cluster
        costs = costs_of(cluster, num_processors=local_processors(cluster))
        self._scales: Scales = scales_of(model, cluster)
        self._context = np.array(list(context_features(model, cluster, costs).values()))
        self._totals = Totals(model, cluster, costs)
        self._analytical: Simulator = open_analytical(model, cluster)
        self._timeline: Simulator = open_timeline(model, cluster)

    def read(self, strategies: Sequence[Strategy]) -> Read:
        """What there is to know of each, in their order."""
        count = len(strategies)
        plans = [lowered(strategy, self._model, self._cluster) for strategy in strategies]
        choices = [list(choice_features(one, self._model, self._cluster).values()) for one in strategies]
        totals = [self._totals.of(tables_of(plan)) for plan in plans]
        return Read(
            choices=np.array(choices).reshape(count, len(CHOICES)),
            totals=np.array([seconds for seconds, _ in totals]).reshape(count, len(SECONDS)),
            counts=np.array([counts for _, counts in totals]).reshape(count, len(COUNTS)),
            analytical_seconds=np.array([one.seconds for one in self._analytical.predict(strategies)]),
            timeline_seconds=np.array([one.seconds for one in self._timeline.predict(strategies)]),
            complexity=np.array([complexity(strategy) for strategy in strategies]),
        )

    def features(self, read: Read, groups: frozenset[Group] = GROUPS) -> Features:
        """The columns of what was read, in the order of `feature_names`."""
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
            columns += [read.totals / seconds[:, None], read.counts]
        if groups == GROUPS:
            columns.append(np.log(read.analytical_seconds / seconds)[:, None])
        # Sums that differ by the order of their terms alone are the same number.
        return Features(np.round(np.concatenate(columns, axis=1), _DIGITS), seconds, read.complexity)


def feature_names(groups: frozenset[Group] = GROUPS) -> tuple[str, ...]:
    """What each column of features is called."""
    names = [*CONTEXT, *CHOICES]
    names += ["predicted.over_bound", "predicted.compute"] if groups else []
    names += [*SECONDS, *COUNTS] if "analytical" in groups else []
    names += ["predicted.analytical"] if groups == GROUPS else []
    return tuple(names)
