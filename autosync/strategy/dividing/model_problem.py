"""Poses the problem of dividing a model for a cluster, and makes the strategy of a division that was found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import share_factor
from autosync.specs.cuts import NUM_COMPARED, segment_seconds
from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.division_problem import DivisionProblem, StageHost, TiedWeight
from autosync.strategy.dividing.partitioner import FoundDivision
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.links import alike_node_rates, uplink_rates
from autosync.strategy.stages import USUAL_SCHEDULE, ModelStage, PipelineSchedule, bytes_of_microbatch

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


def strategy_of(
    found: FoundDivision, problem: DivisionProblem, model: ModelSpec, schedule: PipelineSchedule = USUAL_SCHEDULE
) -> Strategy:
    """Return the strategy of a division of a model's problem."""
    places = [0, *[cut.before for cut in model.timeline.cuts]]
    stages = [ModelStage(before=places[one.begin], ranks=tuple(sorted(one.hosts))) for one in found.stages]
    return divided_strategy(model, stages, problem.microbatches, schedule, problem.slack, recompute=problem.recompute)


def problems_of(
    model: ModelSpec, cluster: ClusterSpec, counts: Iterable[int], way: UnderWay
) -> Iterator[DivisionProblem]:
    """Yield the problems with such numbers of microbatches as divide the global batch and its bytes."""
    for count in counts:
        problem = problem_of(model, cluster, count, way)
        if problem is not None:
            yield problem


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
