"""Divides a model for a cluster: makes the numbers of the problem, and the strategy of the best division."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import share_factor
from autosync.specs.cuts import NUM_COMPARED, segment_seconds
from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.division_problem import BlockStage, DivisionProblem, StageHost, TiedWeight
from autosync.strategy.dividing.in_turn import interleave
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.dividing.partitioner import FoundDivision, partition
from autosync.strategy.dividing.timed import timed
from autosync.strategy.dividing.wrapped import wrapped
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.links import alike_node_rates, uplink_rates
from autosync.strategy.stages import (
    UNFLUSHED,
    USUAL_SCHEDULE,
    ModelStage,
    PipelineSchedule,
    bytes_of_microbatch,
)

MEMORY_TO_SPARE = 1.1
"""Ranks take up to a tenth more memory than is counted."""
USUAL_SLACK = 4
"""So many more microbatches under way hid most of what sends take, on five hosts at 1 Gbit/s in two racks."""


class UnderWay(NamedTuple):
    """What ranks hold of microbatches between their two passes: of how many more, and whether it is computed again.

    If backward passes are split, they hold it longer. `unflushed` is the schedule if it is one without a flush.
    """

    slack: int = USUAL_SLACK
    recompute: bool = False
    splits_backward: bool = False
    unflushed: PipelineSchedule | None = None


USUAL_WAYS = (UnderWay(), UnderWay(0), UnderWay(recompute=True), UnderWay(0, recompute=True))
"""From the fastest, which needs the most memory, to the one that needs the least."""
NUM_WRAPPED = 2
"""The numbers of microbatches for which proposals have the first and the last stage on one rank; that takes longer."""


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
        (one, count)
        for count, problem in _problems(model, cluster, counts, way)
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
    strategies = [
        divided_strategy(model, _stages(model, division.stages), count, schedule, slack, recompute=recompute)
        for division, count in found
    ]
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
        yield partition(replace(problem, deals_evenly=True), divides=schedule == "stashing")
    else:
        yield partition(problem)
        yield wrapped(problem)


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
    way, found = next(((one, found) for one in ways if (found := _divisions(model, cluster, one))), (ways[-1], []))
    best = [
        divided_strategy(model, _stages(model, one.stages), count, USUAL_SCHEDULE, way.slack, recompute=way.recompute)
        for one, count in found[:most]
    ]
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


def _unflushed(strategy: Strategy, schedule: PipelineSchedule, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return a division without a flush, and without slack where it would be illegal with it."""
    found = replace(strategy, schedule=schedule)
    return replace(found, slack=0) if legality.problems(found, model, cluster) else found


def _divisions(model: ModelSpec, cluster: ClusterSpec, way: UnderWay) -> list[tuple[FoundDivision, int]]:
    """Return divisions into two stages or more with their numbers of microbatches, the fastest first."""
    solved = [
        (division, count, problem)
        for count, problem in _problems(model, cluster, legal_counts(model, cluster), way)
        if (division := partition(problem, divides=True)) is not None
    ]
    solved.sort(key=lambda one: one[0].seconds)
    around = [(wrapped(problem), count) for _, count, problem in solved[:NUM_WRAPPED]]
    found = [(one, count) for one, count, _ in solved] + [(one, count) for one, count in around if one is not None]
    return sorted(found, key=lambda one: one[0].seconds)


def _problems(
    model: ModelSpec, cluster: ClusterSpec, counts: Iterable[int], way: UnderWay
) -> Iterator[tuple[int, DivisionProblem]]:
    for count in counts:
        problem = problem_of(model, cluster, count, way)
        if problem is not None:
            yield count, problem


def _stages(model: ModelSpec, stages: tuple[BlockStage, ...]) -> list[ModelStage]:
    places = [0, *[cut.before for cut in model.timeline.cuts]]
    return [ModelStage(before=places[one.begin], ranks=tuple(sorted(one.hosts))) for one in stages]


def problem_of(
    model: ModelSpec, cluster: ClusterSpec, microbatches: int, way: UnderWay = USUAL_WAYS[0]
) -> DivisionProblem | None:
    """Return the problem's numbers; None if the microbatches do not divide the global batch and its bytes."""
    num_examples, rest = divmod(model.batch_size * cluster.num_workers, microbatches)
    crossing = [bytes_of_microbatch(cut, model, num_examples) for cut in model.timeline.cuts]
    if rest or not num_examples or None in crossing:
        return None
    known = [one for one in crossing if one is not None]
    ends = [*[cut.before for cut in model.timeline.cuts], len(model.timeline.forward)]
    begins = [0, *ends[:-1]]
    factor = share_factor(model, num_examples)
    seconds = segment_seconds(model.timeline)
    if way.recompute:
        seconds = [both + one.seconds for both, one in zip(seconds, model.timeline.forward, strict=True)]
    weights = _weights(model)
    held = [0, *[cut.held_bytes for cut in model.timeline.cuts]]
    # Behind the last cut, the profile does not count; that is taken for as much as between the last two.
    held.append(2 * held[-1] - held[-2])
    share = num_examples / model.batch_size
    held_bytes = tuple(share * max(0, b - a) for a, b in itertools.pairwise(held))
    compared = min(1.0, NUM_COMPARED / num_examples) * math.fsum(held_bytes)
    return DivisionProblem(
        seconds=tuple(factor * math.fsum(seconds[a:b]) for a, b in zip(begins, ends, strict=True)),
        weight_bytes=tuple(math.fsum(weights[a:b]) for a, b in zip(begins, ends, strict=True)),
        held_bytes=held_bytes,
        forward_bytes=tuple(float(one[0]) for one in known),
        backward_bytes=tuple(float(one[1]) for one in known),
        hosts=tuple(_hosts(cluster)),
        uplinks=(*_uplinks(cluster), math.inf),
        microbatches=microbatches,
        slack=way.slack,
        recompute=way.recompute,
        splits_backward=way.splits_backward,
        unflushed=way.unflushed,
        # Every rank builds the whole model, and for a while has the gradients of activations between two cuts.
        fixed_bytes=model.num_bytes + model.untrained_bytes + max(held_bytes[:-1]),
        # In the first step, it runs all stages on one microbatch, and compares gradients of a few examples.
        check_bytes=max(model.num_bytes + math.fsum(held_bytes), 2 * model.num_bytes + compared),
        compared_bytes=compared,
        state_factor=1.0 + model.optimizer.state_slots,
        tied=tuple(_tied(model)),
    )


def _tied(model: ModelSpec) -> Iterator[TiedWeight]:
    """Yield the weights that are used on both sides of cuts: before the first of these, and after the last."""
    cuts: dict[str, list[int]] = {}
    variables = variables_by_name(model)
    for place, cut in enumerate(model.timeline.cuts):
        for name in cut.tied:
            # Frozen parameters are no variables.
            if name in variables:
                cuts.setdefault(name, []).append(place)
    for name, places in cuts.items():
        yield TiedWeight((places[0], places[-1] + 1), float(variables[name].num_bytes))


def _weights(model: ModelSpec) -> list[int]:
    """Return the bytes of the variables that each segment is the first to use."""
    known: set[str] = set()
    found, variables = [], variables_by_name(model)
    for segment in model.timeline.forward:
        new = [name for name in dict.fromkeys(segment.variables) if name not in known]
        known.update(new)
        found.append(sum(variables[name].num_bytes for name in new))
    return found


def _uplinks(cluster: ClusterSpec) -> Iterator[float]:
    """Yield the rate at which each rack reaches others: that of its uplink, or of its pod's if that is slower.

    Racks of one pod reach each other at the rate of their own uplinks; taking the pod's is careful.
    """
    rates = {rack.name: min(uplink_rates(cluster, position)) for position, rack in enumerate(cluster.racks)}
    for rack in cluster.racks:
        yield min(rates[rack.name], math.inf if rack.rack is None else rates[rack.rack])


def _hosts(cluster: ClusterSpec) -> Iterator[StageHost]:
    """Yield a host for each worker rank. The ranks of a node share its interface and its memory."""
    racks, rates = {rack.name: number for number, rack in enumerate(cluster.racks)}, alike_node_rates(cluster)
    for rank in cluster.ranks[: cluster.num_workers]:
        node = cluster.nodes[rank.node]
        yield StageHost(
            speed=node.compute,
            rate_out=rates[rank.node][0] / node.devices,
            rate_in=rates[rank.node][1] / node.devices,
            memory=math.inf if node.memory_bytes is None else node.memory_bytes / node.devices / MEMORY_TO_SPARE,
            # Nodes in no rack have no uplink.
            rack=len(racks) if node.rack is None else racks[node.rack],
        )
