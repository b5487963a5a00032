"""The rule of weight stashing, played pass by pass: which version of its stage's parameters a microbatch takes.

It is told here without the formula that the product has: each rank of a stage makes a forward pass with the newest
version, remembers it, and makes the backward pass of the oldest microbatch once enough are under way. After the last
backward pass of a step the stage has one version more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from autosync.strategy.stages import ModelStage


def stash_versions(
    stages: Sequence[ModelStage], microbatches: int, slack: int, num_steps: int
) -> list[Mapping[tuple[int, int], int]]:
    """Return by stage, and by step and microbatch, how many updates the parameters have that both passes take."""
    return [
        {
            (step, microbatch): version
            for place in range(len(stage.ranks))
            for (step, microbatch), version in _of_rank(
                list(range(place, microbatches, len(stage.ranks))), _under_way(stages[number:]) + slack, num_steps
            ).items()
        }
        for number, stage in enumerate(stages)
    ]


def _under_way(stages: Sequence[ModelStage]) -> int:
    """Return how many microbatches one of the first stage's ranks must give away so that all ranks have work."""
    num_ranks, count = sum(len(stage.ranks) for stage in stages), 0
    while count * len(stages[0].ranks) < num_ranks:
        count += 1
    return count


def _of_rank(mine: Sequence[int], under_way: int, num_steps: int) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    waiting: deque[int] = deque()
    num_updates = 0
    for step in range(num_steps):
        for microbatch in mine:
            found[step, microbatch] = num_updates
            waiting.append(microbatch)
            if len(waiting) == under_way and waiting.popleft() == mine[-1]:
                num_updates += 1
    return found
