"""Makes the strategy of a division into stages: the messages among the ranks that hold the same variables."""

from __future__ import annotations

from collections.abc import Sequence

from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.stages import USUAL_SCHEDULE, ModelStage, PipelineSchedule, holders_of_variables

BUCKET_BYTES = 25 * 2**20
"""A message is full when it has so many bytes, as DDP's buckets are."""


def divided_strategy(
    model: ModelSpec,
    stages: Sequence[ModelStage],
    microbatches: int,
    schedule: PipelineSchedule = USUAL_SCHEDULE,
    slack: int = 0,
    *,
    recompute: bool = False,
) -> Strategy:
    """Return a strategy with these stages, whose ranks all-reduce their gradients in buckets."""
    holders = holders_of_variables(stages, model)
    buckets: dict[tuple[tuple[int, ...], str], list[list[Variable]]] = {}
    for variable in sorted(model.variables, key=lambda one: one.ready):
        of_ranks = buckets.setdefault((holders[variable.name], variable.dtype), [[]])
        if sum(one.num_bytes for one in of_ranks[-1]) >= BUCKET_BYTES:
            of_ranks.append([])
        of_ranks[-1].append(variable)
    messages = [
        Message(parts=tuple(variable.name for variable in bucket))
        for of_ranks in buckets.values()
        for bucket in of_ranks
    ]
    return Strategy(
        stages=tuple(stages),
        microbatches=microbatches,
        schedule=schedule,
        slack=slack,
        recompute=recompute,
        messages=tuple(messages),
    )
