"""Finds the fastest strategy by simulation alone. The first round of a study would rank it first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autosync.search.candidates import Candidate
from autosync.search.ground_builder import build_ground
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.rounds import predicted
from autosync.search.study_folder import StudySettings
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec

Find = Callable[[ModelSpec, ClusterSpec, Simulator, Costs, int], Candidate | None]
"""Returns the strategy that a simulator predicts to be fastest; see `fastest`. The last argument is the seed."""


def fastest(model: ModelSpec, cluster: ClusterSpec, simulator: Simulator, costs: Costs, seed: int) -> Candidate | None:
    """Return the exact strategy that is predicted to be fastest on a cluster, among all that a search simulates.

    The same seed gives the same strategy.
    """
    settings = StudySettings(name="prediction", task=model.name, cluster=cluster.name, seed=seed, tuner="prediction")
    ground = build_ground(settings, TrialPreparer(model, cluster))
    # Messages were measured on another number of nodes, so their costs are passed in, not derived from this cluster.
    screen = None if ground.screen is None else AnalyticalSimulator(model, cluster, costs=costs)
    # Nor do these simulators play strategies with stages.
    ground = replace(ground, simulator=simulator, screen=screen, divided=())
    found = predicted(open_proposer(settings.proposer, ground), 1, simulator, seed=seed)
    return found[0] if found else None
