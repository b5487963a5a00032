"""The pace of a rank: how long its compute takes, compared with the model's timeline.

Three things change it. The cluster file may say that a node's devices compute faster or slower than the device of the
profile (`compute`). The vertices of a model whose graph changes may be grouped in another way, and each step waits for
the rank with the largest examples (see `specs.graph_batching`). And a rank may compute more or fewer examples than the
profiled batch. If the timeline has times of
three batch sizes or more, these say what a share takes, by interpolation. Otherwise passes take as long as they have
examples: this is what a replay does too, and it is right for a device that is busy with every single example. It is too
hopeful for small shares on a GPU, for which a profile at several sizes is needed. The optimizer's update does not
depend on the number of examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from autosync.specs.cluster import ClusterSpec
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.model import ModelSpec


class Pace(NamedTuple):
    """The factors by which a rank's forward and backward passes, and its update, take longer than in the timeline."""

    passes: float = 1.0
    update: float = 1.0


USUAL = Pace()
_NUM_HALVINGS = 50


def paces_of(
    model: ModelSpec, cluster: ClusterSpec, shares: Sequence[int] = (), batching: GraphBatching | None = None
) -> tuple[Pace, ...]:
    """Return the pace of each worker rank that computes its share of the batch; without shares, of an even one.

    If the model's graph changes, each rank has the pace of the slowest rank of a step. Which rank that is changes from
    step to step, and all ranks wait for it.
    """
    found: list[Pace] = []
    slowest = 1.0 if model.graphs is None else model.graphs.factor(batching, cluster.num_workers)
    for rank in cluster.ranks[: cluster.num_workers]:
        slower = 1.0 / cluster.nodes[rank.node].compute
        of_share = share_factor(model, shares[rank.index]) if shares else 1.0
        found.append(Pace(passes=slower * of_share * slowest, update=slower))
    return tuple(found)


def share_factor(model: ModelSpec, num_examples: float) -> float:
    """Return how much longer the passes of so many examples take than those of the profiled batch."""
    sizes = model.timeline.sizes
    if not sizes:
        return num_examples / model.batch_size
    points = [(one.num_examples, one.seconds) for one in sizes]
    return _interpolated(points, num_examples) / _interpolated(points, model.batch_size)


def seconds_at(model: ModelSpec, seconds: Sequence[float], num_examples: float) -> float:
    """Return the time with so many examples of something that takes `seconds` with the timeline's batch sizes."""
    sizes = [one.num_examples for one in model.timeline.sizes]
    return _interpolated(list(zip(sizes, seconds, strict=True)), num_examples)


def compute_seconds(
    model: ModelSpec, cluster: ClusterSpec, shares: Sequence[int] = (), batching: GraphBatching | None = None
) -> float:
    """Return the compute time of an optimizer step on its slowest rank."""
    return max(at_pace(model, pace).step_seconds for pace in set(paces_of(model, cluster, shares, batching)))


def least_passes(model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the factor of the slowest rank's passes under the best shares, even if these are no whole numbers.

    Without devices of different speeds it is that of even shares: uneven ones are not searched there. If the model's
    graph changes, it is that of the fastest batching, without any wait for the slowest rank. Dealt by cost, the slowest
    rank may even be faster than one alone.
    """
    if model.graphs is not None:
        fastest = min(one.seconds for one in model.graphs.policies) / model.graphs.policies[0].seconds
        factor, num_workers = model.graphs.dealing_factor, cluster.num_workers
        dealt = min(1.0, factor("count", num_workers), factor("cost", num_workers))
        return fastest * dealt / min(node.compute for node in cluster.nodes if node.role == "worker")
    if not cluster.is_uneven:
        return max(pace.passes for pace in paces_of(model, cluster))
    speeds = [cluster.nodes[rank.node].compute for rank in cluster.ranks[: cluster.num_workers]]
    wanted = float(model.batch_size * cluster.num_workers)
    low, high = 0.0, max(1.0 / speed for speed in speeds)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        could = sum(_examples_within(model, middle * speed, most=wanted) for speed in speeds)
        low, high = (low, middle) if could >= wanted else (middle, high)
    return low


def _examples_within(model: ModelSpec, factor: float, *, most: float) -> float:
    """Return how many examples the profiled device passes in `factor` times the time of the profiled batch."""
    if not model.timeline.sizes:
        return min(factor * model.batch_size, most)
    low, high = 0.0, most
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_factor(model, middle) <= factor else (low, middle)
    return high


def at_pace(model: ModelSpec, pace: Pace) -> ModelSpec:
    """Return the model with the compute times of a rank of this pace, and the same bytes."""
    if pace == USUAL:
        return model
    return replace(model, timeline=model.timeline.paced(passes=pace.passes, update=pace.update))


def _interpolated(points: Sequence[tuple[int, float]], at: float) -> float:
    """Return the time at a size, on the line through its two neighbours; outside, through the two nearest points."""
    place = next((index for index, (size, _) in enumerate(points) if size >= at), len(points) - 1)
    (left, low), (right, high) = points[max(place, 1) - 1], points[max(place, 1)]
    # Below the smallest size, time does not fall under what no example would take in proportion.
    value = low + (high - low) * (at - left) / (right - left)
    return max(value, points[0][1] * min(1.0, at / points[0][0]))
