"""Draws how a variable is cut into parts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from autosync.specs.model import Variable
from autosync.strategy.cuts import even_sizes
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import Partition
from autosync.strategy.space.limits import Limits

P_FIRST_AXIS = 0.8
"""The probability of cutting along the first axis, where parts are contiguous in memory and need no gathering."""

P_BY_BANDWIDTH = 0.5
"""The probability that the sizes of uneven parts follow the nodes' bandwidths instead of being random."""


def axes_to_cut(variable: Variable) -> list[int]:
    """Return the axes along which a variable can be cut."""
    return [axis for axis, size in enumerate(variable.shape) if size > 1]


def draw_partition(
    rng: random.Random,
    variable: Variable,
    *,
    wanted_parts: int,
    p_uneven: float,
    bandwidths: Sequence[float],
    limits: Limits,
) -> Partition:
    """Draw a cut of a variable into about `wanted_parts`, at least two; the variable must have an axis to cut."""
    axes = axes_to_cut(variable)
    axis = axes[0] if len(axes) == 1 or rng.random() < P_FIRST_AXIS else rng.choice(axes[1:])
    size = variable.shape[axis]
    num_parts = max(2, min(wanted_parts, limits.max_parts, MAX_PARTS, size))
    if not (limits.uneven_parts and rng.random() < p_uneven):
        return Partition(axis=axis, sizes=even_sizes(size, num_parts))
    if rng.random() < P_BY_BANDWIDTH:
        weights = [bandwidths[index % len(bandwidths)] for index in range(num_parts)]
    else:
        weights = [rng.uniform(0.25, 1.0) for _ in range(num_parts)]
    return Partition(axis=axis, sizes=weighted_sizes(size, weights))


def weighted_sizes(size: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Cut an axis in proportion to the weights, as nearly as whole numbers allow, without empty parts."""
    free = size - len(weights)
    exact = [free * weight / math.fsum(weights) for weight in weights]
    sizes = [int(share) for share in exact]
    by_rest = sorted(range(len(sizes)), key=lambda index: sizes[index] - exact[index])
    for index in by_rest[: free - sum(sizes)]:
        sizes[index] += 1
    return tuple(1 + share for share in sizes)
