"""Joins the blocks of a problem, because a division of fewer blocks is found sooner."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autosync.strategy.dividing.division_problem import BlockStage, DivisionProblem, TiedWeight


def joined(problem: DivisionProblem, num_blocks: int) -> tuple[DivisionProblem, list[int]]:
    """Return the problem with fewer blocks, of about equal time, and where each of them ends.

    Of the boundaries near an even one, the one that the fewest bytes cross stays.
    """
    until = np.cumsum(problem.seconds)
    ends: list[int] = []
    for number in range(1, num_blocks):
        at = int(np.searchsorted(until, until[-1] * number / num_blocks))
        near = [place for place in range(at - 1, at + 3) if (ends[-1] if ends else 0) < place < problem.num_blocks]
        if near:
            ends.append(min(near, key=lambda place: sum(problem.crossing(place))))
    ends.append(problem.num_blocks)
    begins = [0, *ends[:-1]]

    def sums(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(math.fsum(values[begin:end]) for begin, end in zip(begins, ends, strict=True))

    found = replace(
        problem,
        seconds=sums(problem.seconds),
        weight_bytes=sums(problem.weight_bytes),
        held_bytes=sums(problem.held_bytes),
        forward_bytes=tuple(problem.crossing(end)[0] for end in ends[:-1]),
        backward_bytes=tuple(problem.crossing(end)[1] for end in ends[:-1]),
        tied=tuple(_joined_weight(one, ends) for one in problem.tied),
    )
    return found, ends


def _joined_weight(weight: TiedWeight, ends: Sequence[int]) -> TiedWeight:
    blocks = (block if block < 0 else bisect.bisect(ends, block) for block in weight.blocks)
    return weight._replace(blocks=tuple(dict.fromkeys(blocks)))


def unjoined(stages: Sequence[BlockStage], ends: Sequence[int]) -> tuple[BlockStage, ...]:
    """Return stages of joined blocks as stages of the blocks that were joined."""
    places = [0, *ends]
    return tuple(BlockStage(places[one.begin], places[one.end], one.hosts) for one in stages)
