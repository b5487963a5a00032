"""How far a run may be from stock DDP: twice as far as stock DDP is from itself.

The yardstick is the larger of two distances from stock DDP with buckets of 25 MB, for each tensor and for the losses:
that of stock DDP with buckets of 1 MB, and that of stock DDP with averaged gradients that are off by rounding. On two
ranks the first is usually 0, because the sum of two numbers does not depend on the bucket in which they travel. The
second changes every element of every averaged gradient by 2⁻²⁰ of itself, up or down: 8 to 16 units in the last place
of float32. A strategy that sums, scales or clips in another order is off by less, and a gradient that is not
synchronised by far more. Where a run is farther, nine more such runs of stock DDP widen the yardstick.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor
from written import Written

FACTOR = 2.0
FLOOR = 1e-6
"""What is always allowed, of a tensor's norm and of the largest loss."""
WIDEST = 0.05
"""What may be allowed at most, of the largest loss. A script whose yardstick is wider shows nothing."""
LOSSES = "the losses"

Distances = Mapping[str, float]


def mismatch(found: Written, expected: Written) -> str:
    """Return in words what cannot be compared; empty if all can be."""
    if len(found.losses) != len(expected.losses):
        return f"{len(found.losses)} losses were logged, under stock DDP {len(expected.losses)}"
    if not found.losses:
        return "no loss was logged"
    if found.tensors.keys() != expected.tensors.keys():
        unlike = sorted(found.tensors.keys() ^ expected.tensors.keys())
        return f"the checkpoint differs from stock DDP's in {', '.join(unlike[:3])}"
    for name, one in expected.tensors.items():
        other = found.tensors[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{name} is {other.dtype} {tuple(other.shape)}, under stock DDP {one.dtype} {tuple(one.shape)}"
    return ""


def distances(found: Written, expected: Written) -> Distances:
    """Return the distance of each tensor, by the norm of the difference, and the largest one between two losses."""
    apart = {name: _apart(found.tensors[name], one) for name, one in expected.tensors.items()}
    # It keeps what is no number, which `max` may not.
    losses = float(np.abs(np.subtract(found.losses, expected.losses)).max())
    return {LOSSES: losses, **apart}


def allowances(expected: Written, *yardsticks: Written) -> Distances:
    """Return the distance from `expected` that is allowed, from runs of stock DDP that should come to the same."""
    sizes = {LOSSES: max(map(abs, expected.losses))}
    sizes |= {name: _norm(one) for name, one in expected.tensors.items()}
    apart = [distances(one, expected) for one in yardsticks]
    return {name: FACTOR * float(np.max([one[name] for one in apart])) + FLOOR * size for name, size in sizes.items()}


def too_wide(allowed: Distances, expected: Written) -> str:
    """Return in words that the yardstick is too wide; empty if it is not."""
    share = allowed[LOSSES] / max(map(abs, expected.losses))
    if share <= WIDEST:
        return ""
    return f"stock DDP is too far from itself: {share:.2g} of the largest loss would be allowed"


def excess(found: Distances, allowed: Distances) -> tuple[float, str]:
    """Return the largest share of what is allowed that a distance takes, and where; above 1 it is too far."""
    shares = {name: _share(distance, allowed[name]) for name, distance in found.items()}
    place = max(shares, key=shares.__getitem__)
    return shares[place], place


def _share(distance: float, allowed: float) -> float:
    share = distance / allowed if allowed else (float("inf") if distance else 0.0)
    # What is no number is too far.
    return share if share >= 0 else float("inf")


def _apart(found: Tensor, expected: Tensor) -> float:
    # Equal infinities, as the best metric of a callback may be, are not apart.
    return _norm((found.double() - expected.double()).masked_fill(found == expected, 0.0))


def _norm(one: Tensor) -> float:
    return float(one.double().norm())
