"""Shards: the range of a buffer that each member of a group owns.

Shards are equal, or in proportion to weights. With weights, the buffer is cut into as many equal units as the weights
add up to; each member owns as many of them as its weight, and may own none.
"""

from __future__ import annotations

import itertools

from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Algorithm, Local, Weights
from autosync.strategy.shapes.trees import TreeShape


def shard_bounds(num_elements: int, num_members: int, weights: Weights = ()) -> tuple[int, ...]:
    """Return where the shards of members begin and the last one ends; shards are equal without weights."""
    if not weights:
        return chunk_bounds(num_elements, num_members)
    size, rest = divmod(num_elements, sum(weights))
    return tuple([unit * size + min(unit, rest) for unit in itertools.accumulate(weights, initial=0)])


def shard_weights(algorithm: Algorithm) -> Weights:
    """Return the weights of the shards that a reduce-scatter leaves and an all-gather begins with."""
    return algorithm.owned_units if isinstance(algorithm, TreeShape) else ()


def own_shard(operation: Local, rank: int, num_elements: int) -> slice:
    """Return the elements of a buffer that a rank works on in a local operation: all of them, or its shard."""
    if not operation.sharded:
        return slice(0, num_elements)
    group = next(group for group in operation.groups if rank in group)
    bounds = shard_bounds(num_elements, len(group), operation.weights)
    position = group.index(rank)
    return slice(bounds[position], bounds[position + 1])


def shard_sizes(operation: Local, group: tuple[int, ...]) -> list[float]:
    """Return how many elements each rank of a group works on, as if elements could be divided."""
    if not operation.sharded:
        return [float(operation.num_elements)] * len(group)
    weights = operation.weights or (1,) * len(group)
    return [operation.num_elements * weight / sum(weights) for weight in weights]
