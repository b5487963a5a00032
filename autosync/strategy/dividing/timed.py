"""Says in a strategy how long passes and sends take, so that its plan orders passes by it.

Plans do not depend on times, because profiles of one model differ. So what the order of passes needs to know is part
of the strategy: whole numbers, by the profile that the strategy was made with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.uplinks import crossed
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.links import node_rates, uplink_rates
from autosync.strategy.stage_compute import pass_seconds
from autosync.strategy.stages import UNFLUSHED, ModelStage, boundary_cuts, bytes_of_microbatch

LONGEST = 100
"""The units of the longest pass."""


def timed(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return a legal strategy with the units of its passes and sends, where the order of passes depends on them."""
    if not strategy.stages or strategy.schedule in ("interleaved", *UNFLUSHED):
        return strategy
    num_examples = model.batch_size * cluster.num_workers // strategy.microbatches
    seconds = pass_seconds(strategy.stages, model, num_examples, recompute=False, splits_backward=True)
    found = [
        tuple(one / _speed(stage, cluster) for one in (forward, backward + later, later))
        for number, stage in enumerate(strategy.stages)
        for forward, backward, later in [[seconds[kind, number] for kind in ("forward", "backward", "weights")]]
    ]
    unit = max(itertools.chain.from_iterable(found)) / LONGEST
    if unit <= 0:
        # Nothing is known of the times.
        return strategy
    stages = tuple(
        replace(stage, units=tuple(round(one / unit) for one in of_stage))
        for stage, of_stage in zip(strategy.stages, found, strict=True)
    )
    slowest = max(_send_seconds(strategy.stages, model, cluster, num_examples), default=0.0)
    return replace(strategy, stages=stages, send_units=round(slowest / unit))


def _speed(stage: ModelStage, cluster: ClusterSpec) -> float:
    ranks = cluster.ranks
    return min(cluster.nodes[ranks[rank].node].compute for rank in stage.ranks)


def _send_seconds(
    stages: tuple[ModelStage, ...], model: ModelSpec, cluster: ClusterSpec, num_examples: int
) -> Iterator[float]:
    """Yield how long a microbatch takes over each boundary, on links that nothing else uses."""
    ranks = cluster.ranks
    for (before, after), cut in zip(itertools.pairwise(stages), boundary_cuts(stages, model), strict=True):
        sizes = bytes_of_microbatch(cut, model, num_examples) or (0, 0)
        nodes = ({ranks[rank].node for rank in stage.ranks} for stage in (before, after))
        rates = [_rate(cluster, one, other) for one, other in itertools.product(*nodes)]
        yield max(sizes) / min(rates)


def _rate(cluster: ClusterSpec, source: int, destination: int) -> float:
    """Return the rate of the slowest link between two nodes; within a node, sends count as nothing."""
    if source == destination:
        return math.inf
    leaving, entering = crossed(cluster, source, destination)
    return min(
        node_rates(cluster, source)[0],
        node_rates(cluster, destination)[1],
        *(uplink_rates(cluster, rack)[0] for rack in leaving),
        *(uplink_rates(cluster, rack)[1] for rack in entering),
    )
