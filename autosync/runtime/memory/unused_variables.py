"""Variables that get no gradient in a step: an expert without input, a branch not taken, a layer that is left out.

Under stock DDP with `find_unused_parameters` such a variable counts as zero on a rank that did not use it, and where no
rank used it, its gradient stays None and its optimizer leaves it alone. DDP walks the graph in every step and sums a
map of what was used. Here neither is needed, by one property of floating-point numbers: a sum is -0.0 if every addend
is, and +0.0 if one is. A rank contributes -0.0 for what it did not use, which changes no sum, and sees to it that what
it did use does not begin with -0.0 wherever an update, or the user, looks at a first element: adding +0.0 there does
it. So a sum that begins with -0.0 says that no rank has used the variable. No message is longer for it, and no step
that uses all variables waits for anything.

Codecs other than casts, and what error feedback holds back, do not keep the sign: there a variable that no rank used
has a gradient of zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Local, Plan

NOTHING = -0.0
"""What is contributed of a variable that was not used: the number that changes no sum."""


def is_absent(flat: torch.Tensor) -> bool:
    """Whether no rank has used what this finished sum is of."""
    return flat.numel() > 0 and _says_absent(flat[0].item()) and _is_nothing(flat)


def absent_among(flat: torch.Tensor, pieces: Sequence[slice]) -> list[bool]:
    """The same of several pieces of a flat sum, with one look at the device as long as all are used."""
    if len(pieces) == 1:
        return [is_absent(flat[pieces[0]])]
    firsts: list[float] = flat[[piece.start for piece in pieces]].tolist()
    return [_says_absent(first) and _is_nothing(flat[piece]) for first, piece in zip(firsts, pieces, strict=True)]


def _says_absent(first: float) -> bool:
    return first == 0 and math.copysign(1.0, first) < 0


def _is_nothing(flat: torch.Tensor) -> bool:
    """A tiny negative number may have become -0.0 when it was divided or rounded: so all of them are looked at."""
    return bool((torch.signbit(flat) & (flat == 0)).all())


class Firsts:
    """The elements of each part by which it is told that no rank has used it: where any rank's update of it begins."""

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
        """Say of a part's gradient that this rank has used it. Its numbers stay the same."""
        indices, zeros = self._marks[part]
        flat.index_add_(0, indices, zeros)


def _add_starts(plan: Plan, operation: Local, starts: list[set[int]]) -> None:
    """Where the pieces of an update begin, within their parts."""
    sizes = [plan.regions[index].num_elements for index in operation.outputs]
    cuts = {0}
    if operation.sharded:
        cuts = {cut for group in operation.groups for cut in chunk_bounds(sum(sizes), len(group))}
    position = 0
    for index, size in zip(operation.outputs, sizes, strict=True):
        region = plan.regions[index]
        found = {region.start + cut - position for cut in cuts if position <= cut < position + size}
        starts[region.part] |= found | {region.start}
        position += size
