"""Finds the fastest strategy by simulation alone. The first round of a study would rank it first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from autosync.search.candidates import Candidate
from autosync.search.ground_builder import build_ground
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.rounds import predicted
from autosync.search.study_folder import StudySettings
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.simulators.large_clusters import most_detailed
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec

_NUM_CHOICES = 12
"""So many of the strategies with the shortest predictions are predicted again."""

_COSTLY = 1.5
"""How many times as long the processor time is in the second prediction."""

Find = Callable[[ModelSpec, ClusterSpec, Simulator, Costs, int], Candidate | None]
"""Returns the strategy that a simulator predicts to be fastest; see `fastest`. The last argument is the seed."""


def fastest(model: ModelSpec, cluster: ClusterSpec, simulator: Simulator, costs: Costs, seed: int) -> Candidate | None:
    """Return the exact strategy that is predicted to be fastest on a cluster, among all that a search simulates.

    The shortest of many predictions is often too short: it gains from whatever the simulator takes for too cheap. That
    is above all the processor time of messages. So the strategies with the shortest predictions are predicted again
    with more of it, and the strategy that is fastest in the geometric mean of both is returned. The same seed gives the
    same strategy.
    """
    settings = StudySettings(name="prediction", task=model.name, cluster=cluster.name, seed=seed, tuner="prediction")
    ground = build_ground(settings, TrialPreparer(model, cluster))
    # Messages were measured on another number of nodes, so their costs are passed in, not derived from this cluster.
    screen = None if ground.screen is None else AnalyticalSimulator(model, cluster, costs=costs)
    # Nor do these simulators play strategies with stages.
    ground = replace(ground, simulator=simulator, screen=screen, divided=())
    found = predicted(open_proposer(settings.proposer, ground), _NUM_CHOICES, simulator, seed=seed)
    costly = most_detailed(model, cluster, costs=replace(costs, processor=costs.processor.times(_COSTLY)))
    return fastest_by_both(found, simulator, costly)


def fastest_by_both(found: Sequence[Candidate], simulator: Simulator, costly: Simulator) -> Candidate | None:
    """Return the strategy whose predictions by two simulators are the shortest in the geometric mean."""
    strategies = [one.strategy for one in found if one.strategy is not None]
    if not strategies:
        return None
    times = [[one.seconds for one in by.predict(strategies)] for by in (simulator, costly)]
    means = [math.prod(pair) for pair in zip(*times, strict=True)]
    chosen = strategies[means.index(min(means))]
    return next(one for one in found if one.strategy is chosen)
