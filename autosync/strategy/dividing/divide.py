"""Divides a model for a cluster: the strategy of the best division."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.dividing.division_problem import DivisionProblem
from autosync.strategy.dividing.in_turn import interleave
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.dividing.model_problem import USUAL_SLACK, UnderWay, problems_of, strategy_of
from autosync.strategy.dividing.partitioner import FoundDivision, partition
from autosync.strategy.dividing.timed import timed
from autosync.strategy.dividing.wrapped import wrapped
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import UNFLUSHED, USUAL_SCHEDULE, PipelineSchedule


def divide(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    microbatches: int | None = None,
    schedule: PipelineSchedule = USUAL_SCHEDULE,
    slack: int = USUAL_SLACK,
    recompute: bool = False,
) -> Strategy:
    """Return the strategy of the division that the partitioner takes for the fastest.

    Without `microbatches`, all numbers are tried that divide the global batch. Of what was found, the fastest that is
    legal under the schedule is taken. An interleaved division has stages of about equal compute.
    """
    if not model.timeline.cuts:
        reason = model.timeline.uncut or f"the profile of {model.name} has no cuts"
        raise DoesNotApplyError(reason, rule="stages begin at the profile's cuts", hint="autosync profile --cuts")
    if schedule == "interleaved":
        return interleave(model, cluster, microbatches=microbatches, slack=slack, recompute=recompute)
    counts = legal_counts(model, cluster) if microbatches is None else [microbatches]
    unflushed = schedule if schedule in UNFLUSHED else None
    way = UnderWay(slack, recompute, splits_backward=schedule == "zero_bubble", unflushed=unflushed)
    found = [
        (one, problem)
        for problem in problems_of(model, cluster, counts, way)
        for one in _solved(problem, schedule)
        if one is not None
    ]
    if not found:
        what = f"{model.name} cannot be divided over {cluster.name}"
        wanted = "" if microbatches is None else f" with {microbatches} microbatches"
        raise DoesNotApplyError(
            what + wanted,
            rule="microbatches divide the global batch, and stages fit into the nodes' memory",
            hint="" if recompute else "less memory: --slack 0, or --recompute",
        )
    found.sort(key=lambda one: one[0].seconds)
    strategies = [strategy_of(division, problem, model, schedule) for division, problem in found]
    legal = (one for one in strategies if not legality.problems(one, model, cluster))
    strategy = next(legal, strategies[0])
    # If none is legal, the fastest one says why.
    legality.check(strategy, model, cluster)
    return timed(strategy, model, cluster)


def _solved(problem: DivisionProblem, schedule: PipelineSchedule) -> Iterator[FoundDivision | None]:
    """Yield the divisions that a schedule may have.

    Without a flush, each rank has one stage, and the ranks of a stage compute equally many microbatches.
    """
    if schedule in UNFLUSHED:
        # Stashing needs two stages or more.
        most_hosts = len(problem.hosts) - 1 if schedule == "stashing" else math.inf
        yield partition(replace(problem, deals_evenly=True, most_hosts=most_hosts))
    else:
        yield partition(problem)
        yield wrapped(problem)
