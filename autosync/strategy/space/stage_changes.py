"""Changes of one aspect of the stages.

Each returns None if it does not apply, and may return an illegal strategy. Changed stages have no units.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.specs.model import ModelSpec
from autosync.strategy.dividing.in_turn import stages_in_turn
from autosync.strategy.dividing.regrouping import regrouped
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import FLUSHED, ModelStage, PipelineSchedule, are_in_turn

MOST_SLACK = 16
P_NEAR = 0.6
"""The chance to take the nearest other value; else the next nearest is taken with this chance, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRoom:
    """The values of a space's stages: the forward segments before which they may begin, and numbers of microbatches.

    `is_memory_stated`: the cluster file states a node's memory. `schedules` are those that may be taken.
    """

    model: ModelSpec
    cuts: Sequence[int]
    counts: Sequence[int]
    is_memory_stated: bool
    schedules: Sequence[PipelineSchedule] = FLUSHED


def move_cut(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Move the place where a stage begins, mostly to a cut nearby."""
    stages = list(strategy.stages)
    if len(stages) < 2:
        return None
    number = rng.randrange(1, len(stages))
    found = [cut for cut in _cuts_within(room, stages, number - 1, number + 1) if cut != stages[number].before]
    if not found:
        return None
    stages[number] = replace(stages[number], before=_near(found, stages[number].before, rng))
    return _with_stages(room, strategy, stages)


def move_rank(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Move a rank from a stage with several to another one."""
    stages = list(strategy.stages)
    givers = [number for number, stage in enumerate(stages) if len(stage.ranks) > 1]
    if not givers or len(stages) < 2:
        return None
    giver = rng.choice(givers)
    moved = rng.choice(stages[giver].ranks)
    takers = [number for number, stage in enumerate(stages) if number != giver and moved not in stage.ranks]
    if not takers:
        return None
    taker = rng.choice(takers)
    stages[giver] = _with_ranks(stages[giver], [rank for rank in stages[giver].ranks if rank != moved])
    stages[taker] = _with_ranks(stages[taker], [*stages[taker].ranks, moved])
    return _with_stages(room, strategy, stages)


def swap_ranks(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Let two ranks of different stages change places everywhere."""
    ranks = sorted({rank for stage in strategy.stages for rank in stage.ranks})
    if len(ranks) < 2:
        return None
    one, other = rng.sample(ranks, 2)
    places = {one: other, other: one}
    stages = [_with_ranks(stage, [places.get(rank, rank) for rank in stage.ranks]) for stage in strategy.stages]
    return _with_stages(room, strategy, stages)


def split_stage(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Cut a stage with several ranks in two, and deal its ranks to both."""
    stages = list(strategy.stages)
    found = [number for number, stage in enumerate(stages) if len(stage.ranks) > 1]
    if not found:
        return None
    number = rng.choice(found)
    cuts = _cuts_within(room, stages, number, number + 1)
    if not cuts:
        return None
    bound = rng.randrange(1, len(stages[number].ranks))
    first, second = stages[number].ranks[:bound], stages[number].ranks[bound:]
    stages[number : number + 1] = [
        _with_ranks(stages[number], first),
        ModelStage(before=rng.choice(cuts), ranks=second),
    ]
    return _with_stages(room, strategy, stages)


def join_stages(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Join two stages that follow one another, with the ranks of both."""
    stages = list(strategy.stages)
    if len(stages) < 3:
        return None
    number = rng.randrange(len(stages) - 1)
    ranks = [*stages[number].ranks, *stages[number + 1].ranks]
    stages[number : number + 2] = [_with_ranks(stages[number], ranks)]
    return _with_stages(room, strategy, stages)


def wrap_stages(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give the end of the last stage to the ranks of the first one, which then hold a weight that both use."""
    stages = list(strategy.stages)
    if len(stages) < 2 or stages[0].ranks == stages[-1].ranks:
        return None
    cuts = _cuts_within(room, stages, len(stages) - 1, len(stages))
    if not cuts:
        return None
    stages.append(ModelStage(before=_near(cuts, cuts[-1] + 1, rng), ranks=stages[0].ranks))
    return _with_stages(room, strategy, stages)


def drop_stage(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give the layers of a stage to the one before it, if all its ranks have other stages."""
    stages = list(strategy.stages)
    found = [
        number
        for number, stage in enumerate(stages)
        if number and all(any(rank in one.ranks for one in stages if one is not stage) for rank in stage.ranks)
    ]
    if not found or len(stages) < 3:
        return None
    del stages[rng.choice(found)]
    return _with_stages(room, strategy, stages)


def change_microbatches(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Divide the batch into another number of microbatches, mostly one of the nearest."""
    places = {count: place for place, count in enumerate(room.counts)}
    here = places.get(strategy.microbatches, 0)
    found = [place for place, count in enumerate(room.counts) if count != strategy.microbatches]
    if not found:
        return None
    return replace(strategy, name="", microbatches=room.counts[_near(found, here, rng)])


def change_schedule(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Take another order of passes."""
    others = [
        one
        for one in room.schedules
        if one != strategy.schedule and (one != "interleaved" or are_in_turn(strategy.stages))
    ]
    return replace(strategy, name="", schedule=rng.choice(others), slack=0)


def interleave(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Give each rank of a pipeline two or three short stages of about equal compute, dealt to the ranks in turn."""
    ring = list(dict.fromkeys(stage.ranks for stage in strategy.stages))
    if len(ring) < 2 or any(len(ranks) > 1 for ranks in ring):
        return None
    stages = stages_in_turn(room.model, [ranks[0] for ranks in ring], rng.choice((2, 3)))
    if stages is None:
        return None
    return _with_stages(room, replace(strategy, schedule="interleaved", slack=0), stages)


def change_slack(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Let more or fewer microbatches be under way."""
    del room
    if strategy.schedule == "gpipe":
        return None
    found = [slack for slack in range(MOST_SLACK + 1) if slack != strategy.slack]
    return replace(strategy, name="", slack=_near(found, strategy.slack, rng))


def change_recompute(room: StageRoom, strategy: Strategy, rng: random.Random) -> Strategy | None:
    """Keep activations, or compute them again, which pays only where memory is scarce."""
    del rng
    return replace(strategy, name="", recompute=not strategy.recompute) if room.is_memory_stated else None


def _with_stages(room: StageRoom, strategy: Strategy, stages: Sequence[ModelStage]) -> Strategy:
    # The units are those of the stages before, and new stages have none. What is legal gets them anew.
    untimed = tuple(replace(stage, units=()) for stage in stages)
    return regrouped(replace(strategy, name="", stages=untimed, send_units=0), room.model)


def _with_ranks(stage: ModelStage, ranks: Sequence[int]) -> ModelStage:
    return replace(stage, ranks=tuple(sorted(set(ranks))))


def _cuts_within(room: StageRoom, stages: Sequence[ModelStage], low: int, high: int) -> list[int]:
    """Return the cuts between the places where two stages begin; behind the last stage, all that are left."""
    begin = stages[low].before
    end = stages[high].before if high < len(stages) else None
    return [cut for cut in room.cuts if cut > begin and (end is None or cut < end)]


def _near(values: Sequence[int], here: int, rng: random.Random) -> int:
    """Draw one of some values, mostly one near another value."""
    ordered = sorted(values, key=lambda value: (abs(value - here), value))
    # Both neighbours are as near as can be.
    pairs = [ordered[place : place + 2] for place in range(0, len(ordered), 2)]
    for pair in itertools.islice(pairs, len(pairs) - 1):
        if rng.random() < P_NEAR:
            return rng.choice(pair)
    return rng.choice(pairs[-1])
