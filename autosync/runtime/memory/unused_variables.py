"""Variables that get no gradient in a step: an expert without input, a branch not taken, a layer that is left out.

Under stock DDP with `find_unused_parameters`, such a variable counts as zero on a rank that did not use it. If no rank
used it, its gradient stays None and its optimizer leaves it alone. For this, DDP walks the graph in every step and sums
a map of the used variables. Here, one property of floating-point zeros is enough: a sum is -0.0 if every addend is
-0.0, and +0.0 if one of them is +0.0. For a variable that a rank did not use it contributes -0.0, which changes no sum.
For a variable that it did use, it adds +0.0 to each element that an update, or the user, looks at first, so that none
of these is -0.0. So a sum that begins with -0.0 means that no rank has used the variable. This makes no message longer,
and a step that uses all variables waits for nothing.

Codecs other than casts, and error feedback, do not keep the sign: there, a variable that no rank used has a gradient of
zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autosync.plan.shards import shard_bounds
from autosync.plan.types import Local, Plan

NOTHING = -0.0
"""The contribution for a variable that was not used: the number that changes no sum."""


def is_absent(flat: torch.Tensor) -> bool:
    """Whether a finished sum shows that no rank has used its variable."""
    return flat.numel() > 0 and _says_absent(flat[0].item()) and _is_nothing(flat)


def absent_among(flat: torch.Tensor, pieces: Sequence[slice]) -> list[bool]:
    """Return `is_absent` of several pieces of a flat sum, with one access to the device if all were used."""
    if len(pieces) == 1:
        return [is_absent(flat[pieces[0]])]
    firsts: list[float] = flat[[piece.start for piece in pieces]].tolist()
    return [_says_absent(first) and _is_nothing(flat[piece]) for first, piece in zip(firsts, pieces, strict=True)]


def _says_absent(first: float) -> bool:
    return first == 0 and math.copysign(1.0, first) < 0


def _is_nothing(flat: torch.Tensor) -> bool:
    """Whether all elements are -0.0. A single -0.0 may be a tiny negative number that was divided or rounded."""
    return bool((torch.signbit(flat) & (flat == 0)).all())


class Firsts:
    """The elements of each part that show whether any rank has used it: those where some rank's update begins."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        starts: list[set[int]] = [{0} for _ in plan.parts]
        for operation in plan.operations:
            if isinstance(operation, Local) and operation.kind == "update":
                _add_starts(plan, operation, starts)
        zeros: dict[tuple[int, str], torch.Tensor] = {}
        self._marks: list[tuple[torch.Tensor, torch.Tensor]] = []
        for part, found in zip(plan.parts, starts, strict=True):
            dtype = part.variable.dtype
            nothing = torch.zeros(len(found), dtype=getattr(torch, dtype), device=device)
            nothing = zeros.setdefault((len(found), dtype), nothing)
            self._marks.append((torch.tensor(sorted(found), device=device), nothing))

    def mark(self, part: int, flat: torch.Tensor) -> None:
        """Mark a part's gradient as used by this rank. Its numbers stay the same."""
        flat.index_add_(0, *self._marks[part])

    def of(self, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a part's marks: positions in its flat gradient, and what `index_add_` adds there."""
        return self._marks[part]


def _add_starts(plan: Plan, operation: Local, starts: list[set[int]]) -> None:
    """Add the positions, within their parts, where the pieces of an update begin."""
    sizes = [plan.regions[index].num_elements for index in operation.outputs]
    cuts = {0}
    if operation.sharded:
        cuts = {cut for group in operation.groups for cut in shard_bounds(sum(sizes), len(group), operation.weights)}
    position = 0
    for index, size in zip(operation.outputs, sizes, strict=True):
        region = plan.regions[index]
        found = {region.start + cut - position for cut in cuts if position <= cut < position + size}
        starts[region.part] |= found | {region.start}
        position += size
