"""The preset of clusters with devices of different speeds: each rank gets the share of the batch that suits it."""

from __future__ import annotations

import heapq
from dataclasses import replace

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import share_factor
from autosync.specs.model import ModelSpec
from autosync.strategy.parts import PartName
from autosync.strategy.presets.common import interface_rate
from autosync.strategy.presets.ddp import ddp
from autosync.strategy.representation import Strategy
from autosync.strategy.shares import are_even, global_batch


def uneven_batches(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """DDP's buckets, with shares of the batch by which all ranks finish a step at the same time, as Cannikin divides.

    A rank that is slow at computing ends its step with its backward pass and the all-reduce of the last bucket. Where
    compute is short, it ends with the all-reduces of all buckets after its first one is ready. A rank's time is the
    larger of the two; it grows with its examples. Examples are dealt one by one to the rank that would have the
    smallest time with one more. Needs nodes with different `compute` in the cluster file, and a task that declares its
    `batch_size`.

    Source: Nie, Maghakian and Liu, "Training DNN Models over Heterogeneous Clusters with Optimal Performance"
    (Cannikin), arXiv 2402.05302, 2024: the batch sizes of OptPerf, and gradients weighted by them. There, the times of
    compute and all-reduce are learned while training; here they come from the model's profile and the links' rates.
    """
    if not cluster.is_uneven:
        what = f"all nodes of {cluster.name} compute at the same speed"
        raise DoesNotApplyError(what, rule="shares follow the speeds in the cluster file: compute of a node")
    if model.batch_size < 2:
        what = f"a rank's batch of {model.batch_size} example cannot be divided"
        raise DoesNotApplyError(what, rule="the task declares the examples of a batch: batch_size")
    strategy = ddp(model, cluster)
    shares = _Times(strategy, model, cluster).even_out(global_batch(model, cluster))
    if are_even(shares):
        what = f"{sum(shares)} examples are too few for shares that follow the speeds"
        raise DoesNotApplyError(what, rule="a faster rank computes at least one example more")
    return replace(strategy, shares=shares)


class _Times:
    """The time of a step of each rank by its number of examples."""

    def __init__(self, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> None:
        timeline = model.timeline
        self._model = model
        self._speeds = [cluster.nodes[rank.node].compute for rank in cluster.ranks[: cluster.num_workers]]
        forward = sum(segment.seconds for segment in timeline.forward)
        backward = sum(segment.seconds for segment in timeline.backward)
        self._before = (model.accumulation_steps - 1) * (forward + backward) + forward
        self._backward = backward
        self._until_first = _until_first_bucket(strategy, model)
        seconds = _all_reduce_seconds(strategy, model, cluster)
        self._of_all, self._of_last = sum(seconds), seconds[-1]

    def of(self, rank: int, num_examples: int) -> float:
        """Return the time of a rank's step with so many examples."""
        pace = share_factor(self._model, num_examples) / self._speeds[rank]
        compute = pace * (self._before + self._backward) + self._of_last
        return max(compute, pace * (self._before + self._until_first) + self._of_all)

    def even_out(self, num_examples: int) -> tuple[int, ...]:
        """Return the shares with the smallest time of the slowest rank."""
        shares = [1] * len(self._speeds)
        with_one_more = [(self.of(rank, 2), rank) for rank in range(len(shares))]
        heapq.heapify(with_one_more)
        for _ in range(num_examples - len(shares)):
            rank = with_one_more[0][1]
            shares[rank] += 1
            heapq.heapreplace(with_one_more, (self.of(rank, shares[rank] + 1), rank))
        return tuple(shares)


def _until_first_bucket(strategy: Strategy, model: ModelSpec) -> float:
    """Return the time of the backward pass until the first bucket's gradients are ready."""
    first = {PartName.parse(name).variable for name in strategy.messages[0].parts}
    seconds = until = 0.0
    for segment in model.timeline.backward:
        seconds += segment.seconds
        if first.intersection(segment.variables):
            until = seconds
    return until


def _all_reduce_seconds(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> list[float]:
    """Return the time of each bucket's all-reduce: a ring over the slowest interface."""
    nodes = [node for node in cluster.nodes if node.role == "worker"]
    rate = min(interface_rate(node) for node in nodes)
    factor = 2 * (len(nodes) - 1) / len(nodes) / rate
    sizes = [
        sum(model.variable(PartName.parse(name).variable).num_bytes for name in message.parts)
        for message in strategy.messages
    ]
    return [size * factor for size in sizes]
