"""Builds the ground that a proposer works on: the domain, the known strategies, and the simulators."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from autosync.errors import InputError
from autosync.search.candidates import Candidate, candidate, known_candidates
from autosync.search.domain import PoolDomain, SpaceDomain
from autosync.search.pool import Pool
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.prior import prior_path
from autosync.search.proposers.interface import Domain, Ground
from autosync.search.stage_check import why_undivided_study
from autosync.search.study_folder import StudySettings
from autosync.search.target import DdpDomain, ddp_limits
from autosync.simulators.catalogue import open_simulator
from autosync.simulators.interface import Simulator
from autosync.simulators.stages.simulator import with_stages
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space

SCREEN = "analytical"
"""The name of the fast simulator. From many strategies it selects those that the precise simulator predicts."""

NUM_SCREENED = 2500
NUM_SIMULATED = 1000
FEWEST_SIMULATED = 96
LARGE = 250
"""The product of variables and nodes above which the precise simulator predicts fewer strategies a round, in
proportion. Its predictions take longer the more variables and nodes there are, and a round must not take minutes. The
counts above are for each round, and for each start in the first one."""

NUM_STARTS = 4
"""How often the first round searches from scratch; less often above `LARGE`. For acoustic_mlp@x50 on 4-hosts, what six
single starts found was predicted to take 136 to 150 ms, and what six times four starts found, 134 to 139 ms."""

NUM_PAIRS = 4
"""The number of divisions into two stages that a search begins with, besides those of the partitioner."""

NUM_PAIRS_PLAYED, FEWEST_PAIRS_PLAYED = 144, 12
"""From so many they are chosen; from fewer above `LARGE`."""


def build_ground(settings: StudySettings, preparer: TrialPreparer, pool: Pool | None = None) -> Ground:
    """Return the ground of a study; with a pool, the ground of a replayed search."""
    model, cluster, allow = preparer.model, preparer.cluster, settings.allow
    limits = ddp_limits(allow)
    if settings.target == "autosync":
        limits = Limits(allow=allow, stages=not why_undivided_study(settings, model, cluster))
    space = Space(model=model, cluster=cluster, limits=limits)
    domain: Domain = SpaceDomain(space=space, plan_of=preparer.plan)
    if settings.target == "ddp":
        domain = DdpDomain(model=model, cluster=cluster, allow=limits.allow, plan_of=preparer.plan)
    simulators = simulator_fields(settings.simulator, model, cluster, prior=prior_path(settings.prior))
    if pool is None:
        known: Sequence[Candidate] = list(known_candidates(model, cluster, domain.contains))
        divided = list(_divided(space, domain, simulators["simulator"]))
    else:
        candidates = [one for one in pool.candidates if one.strategy and _may_be_tried(one.strategy, domain, limits)]
        if not candidates:
            raise InputError("the pool has no strategy that may be tried", rule="exact ones, or --allow")
        domain = PoolDomain(space, [one.strategy for one in candidates if one.strategy is not None])
        known = [one for one in candidates if one.origin.startswith("preset:")]
        divided = [one for one in candidates if one.has_stages]
    ground = Ground(
        model=model,
        cluster=cluster,
        domain=domain,
        limits=limits,
        known=tuple(known),
        divided=tuple(divided),
        **simulators,
    )
    # Without trials there is one round alone.
    return replace(ground, num_starts=NUM_STARTS) if settings.num_trials == 0 else ground


def simulator_fields(name: str, model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> dict[str, Any]:
    """Return the fields of a `Ground` that concern prediction: the named simulator and the screen in front of it."""
    simulator = {"simulator": with_stages(open_simulator(name, model, cluster, prior=prior), model, cluster)}
    if name == SCREEN:
        return {**simulator, "num_simulated": NUM_SCREENED}
    size = _size(model, cluster)
    return {
        **simulator,
        "num_simulated": max(FEWEST_SIMULATED, round(NUM_SIMULATED / size)),
        "screen": with_stages(open_simulator(SCREEN, model, cluster), model, cluster),
        "num_screened": NUM_SCREENED,
        "num_starts": max(1, round(NUM_STARTS / math.sqrt(size))),
    }


def _divided(space: Space, domain: Domain, simulator: Simulator) -> Iterator[Candidate]:
    """Yield the partitioner's divisions, and then the pairs that are predicted to be fastest; each once."""
    if space.stages is None:
        return
    seen: set[str] = set()
    proposals = filter(domain.contains, space.stages.proposals)
    pairs = filter(domain.contains, _fastest_first(space, space.stages.pairs, simulator))
    for strategy in chain(proposals, islice(pairs, NUM_PAIRS)):
        one = candidate("divided", strategy, space.model, space.cluster)
        if one.strategy_id not in seen:
            seen.add(one.strategy_id)
            yield one


def _fastest_first(space: Space, pairs: Sequence[Strategy], simulator: Simulator) -> list[Strategy]:
    """Return all pairs, or some that are drawn; those that are predicted to be fastest come first."""
    most = max(FEWEST_PAIRS_PLAYED, round(NUM_PAIRS_PLAYED / _size(space.model, space.cluster)))
    played = pairs if len(pairs) <= most else random.Random(0).sample(pairs, most)
    predicted = zip([one.seconds for one in simulator.predict(played)], range(len(played)), strict=True)
    return [played[place] for _, place in sorted(predicted)]


def _size(model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return how large a step is to predict, in units of `LARGE`; at least 1."""
    return max(1.0, len(model.variables) * len(cluster.nodes) / LARGE)


def _may_be_tried(strategy: Strategy, domain: Domain, limits: Limits) -> bool:
    """Return whether a recorded strategy is of the allowed classes and can be expressed by the target."""
    is_ours = isinstance(domain, SpaceDomain) or domain.contains(strategy)
    return is_ours and set(strategy.classes) <= {"exact", *limits.allow}
