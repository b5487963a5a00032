"""The divisions that a search begins with: the fastest by the partitioner's estimate, and narrow ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.division_problem import DivisionProblem
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.dividing.model_problem import USUAL_SLACK, USUAL_WAYS, UnderWay, problems_of, strategy_of
from autosync.strategy.dividing.partitioner import FoundDivision, partition
from autosync.strategy.dividing.timed import timed
from autosync.strategy.dividing.wrapped import wrapped
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import UNFLUSHED, PipelineSchedule

NUM_WRAPPED = 2
"""The numbers of microbatches for which proposals have the first and the last stage on one rank; that takes longer."""
NARROW_STAGES = (2, 3, 4)
"""A stage of a narrow division has at most as many ranks as it would have if so many stages shared them evenly."""


def proposed_divisions(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    most: int,
    ways: Sequence[UnderWay] = USUAL_WAYS,
    may_be_stale: bool = False,
) -> list[Strategy]:
    """Return the divisions into two stages or more that the partitioner takes for the fastest, the fastest first.

    They differ in their stages, ranks or microbatches. The best of them comes in all schedules (without a flush if it
    `may_be_stale`) and with other slacks. They have the first of some `ways` with which any fits into memory.
    """
    counts = legal_counts(model, cluster)
    straight = _straight(model, cluster, counts, ways, most_hosts=cluster.num_workers - 1)
    around = [(wrapped(problem), problem) for _, problem in straight[:NUM_WRAPPED]]
    found = straight + [(one, problem) for one, problem in around if one is not None]
    found.sort(key=lambda one: one[0].seconds)
    best = [strategy_of(one, problem, model) for one, problem in found[:most]]
    if len(best) > 1:
        first = best[0]
        others = [slack for slack in (0, 3 * USUAL_SLACK) if slack != first.slack]
        best[1:1] = [
            replace(first, schedule="gpipe", slack=0),
            replace(first, schedule="zero_bubble"),
            *(_unflushed(first, one, model, cluster) for one in UNFLUSHED if may_be_stale),
            *(replace(first, slack=slack) for slack in others),
        ]
    return [timed(one, model, cluster) for one in best if not legality.problems(one, model, cluster)][:most]


def narrow_divisions(model: ModelSpec, cluster: ClusterSpec, counts: Sequence[int]) -> list[Strategy]:
    """Return divisions into more stages than the fastest ones may have, with fewer ranks each.

    For each of some limits on the ranks of a stage, they are the one that the partitioner takes for the fastest with
    any of these numbers of microbatches, with whole and with split backward passes. Its estimate knows nothing of how
    messages wait for one another, so that a division which it takes for slower may be faster.
    """
    limits = _narrow_limits(cluster.num_workers)
    found = [one for most in limits for one in _straight(model, cluster, counts, most_hosts=most)[:1]]
    whole = [strategy_of(one, problem, model) for one, problem in found]
    both = [one for strategy in whole for one in (strategy, replace(strategy, schedule="zero_bubble"))]
    return [timed(one, model, cluster) for one in both if not legality.problems(one, model, cluster)]


def _narrow_limits(num_hosts: int) -> list[int]:
    """Return the most hosts that a stage may have: an even share of two, three or four stages, or one."""
    shares = (*(-(-num_hosts // num_stages) for num_stages in NARROW_STAGES), 1)
    return [most for most in dict.fromkeys(shares) if most < num_hosts]


def _straight(
    model: ModelSpec,
    cluster: ClusterSpec,
    counts: Sequence[int],
    ways: Sequence[UnderWay] = USUAL_WAYS,
    *,
    most_hosts: int,
) -> list[tuple[FoundDivision, DivisionProblem]]:
    """Return the best division for each number of microbatches, the fastest first.

    Their stages have so many hosts at most. They have the first of some ways with which any fits into memory.
    """
    for way in ways:
        problems = [replace(one, most_hosts=most_hosts) for one in problems_of(model, cluster, counts, way)]
        found = [(one, problem) for problem in problems if (one := partition(problem)) is not None]
        if found:
            return sorted(found, key=lambda one: one[0].seconds)
    return []


def _unflushed(strategy: Strategy, schedule: PipelineSchedule, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return a division without a flush, and without slack where it would be illegal with it."""
    found = replace(strategy, schedule=schedule)
    return replace(found, slack=0) if legality.problems(found, model, cluster) else found
