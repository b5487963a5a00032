"""The schedules among which a loop is tuned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autosync.loops.choosing import choose, exact_choices
from autosync.loops.declarations import Records
from autosync.loops.dependences import LoopAnalysis
from autosync.loops.schedules import LoopSchedule, ScheduleChoice

BLOCKS_PER_RANK = (2, 1, 4, 8)
MERGES_PER_EPOCH = (1, 4, 16, 64)
STALENESS = (0, 2)
"""Synchronous servers, and the least staleness that hides the way to the servers and the way back."""

ONE_RANK = ScheduleChoice(on_one_rank=True)


def exact_candidates(analysis: LoopAnalysis, records: Records, num_ranks: int) -> list[ScheduleChoice]:
    """Return the schedules on all ranks with the serial result. The first one is the choice without tuning."""
    found = [
        replace(choice, blocks_per_rank=blocks)
        for choice in exact_choices(analysis, records, num_ranks)
        for blocks in (BLOCKS_PER_RANK if choice.rotate else BLOCKS_PER_RANK[:1])
    ]
    return [one for one in found if isinstance(choose(analysis, records, num_ranks, one), LoopSchedule)]


def server_candidates(analysis: LoopAnalysis, records: Records, num_ranks: int) -> Iterator[ScheduleChoice]:
    """Yield the data-parallel schedules; none if servers are not needed, or not possible."""
    most = max(1, -(-len(records) // num_ranks))
    seen = set()
    for merges in MERGES_PER_EPOCH:
        for staleness in STALENESS:
            every = max(1, -(-most // merges))
            # With one merge, an epoch has no later piece that could read older numbers.
            choice = ScheduleChoice(data_parallel=True, merge_every=every, staleness=staleness if merges > 1 else 0)
            found = choose(analysis, records, num_ranks, choice)
            is_new = isinstance(found, LoopSchedule) and found.kind == "data_parallel" and choice not in seen
            seen.add(choice)
            if is_new:
                yield choice


def words_of_choice(choice: ScheduleChoice) -> str:
    """Return a choice in words, for users."""
    if choice.on_one_rank:
        return "one rank"
    if choice.data_parallel:
        kind = f"staleness {choice.staleness}" if choice.staleness else "synchronous"
        return f"data-parallel, merged every {choice.merge_every:,} records, {kind}"
    if choice.rotate:
        blocks = "1 block" if choice.blocks_per_rank == 1 else f"{choice.blocks_per_rank} blocks"
        return f"{choice.rotate} goes round, {blocks} a rank; {choice.stay} stays"
    if choice.stay:
        return f"cut along {choice.stay}"
    return "cut anywhere"
