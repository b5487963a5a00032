"""Divisions in which one host has the first and the last blocks, so that a weight that both use is on one host."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from autosync.strategy.dividing.division_problem import BlockStage, DivisionProblem, TiedWeight
from autosync.strategy.dividing.partitioner import NUM_REMEMBERED, FoundDivision, partition

MOST_FIRST, MOST_LAST = 3, 4
"""The most blocks that the host may have at the beginning and at the end."""
MOST_SHARES = 1.5
"""The most compute of that host, as a multiple of an even share."""


@functools.lru_cache(maxsize=NUM_REMEMBERED)
def wrapped(problem: DivisionProblem) -> FoundDivision | None:
    """Return the best such division that was found; None if no weight is shared, or there are too few hosts."""
    if len(problem.hosts) < 2 or problem.num_blocks < 3:
        return None
    found = [
        one
        for host in _one_of_each_kind(problem)
        for first, last in _ends(problem)
        if (one := _around(problem, host, first, last)) is not None
    ]
    return min(found, key=lambda one: one.seconds, default=None)


def _one_of_each_kind(problem: DivisionProblem) -> list[int]:
    return list({host: number for number, host in reversed(list(enumerate(problem.hosts)))}.values())


def _ends(problem: DivisionProblem) -> Iterator[tuple[int, int]]:
    """Yield where the host's first blocks end and its last ones begin, if these share a weight.

    Each choice takes about as long as a division of the whole, so there are two: the least compute, and the one that is
    nearest to an even share. No choice takes more than `MOST_SHARES` of it.
    """
    share = math.fsum(problem.seconds) / len(problem.hosts)
    found: dict[tuple[int, int], float] = {}
    for first in range(1, min(MOST_FIRST, problem.num_blocks - 2) + 1):
        for last in range(max(first + 1, problem.num_blocks - MOST_LAST), problem.num_blocks):
            seconds = math.fsum(problem.seconds[:first]) + math.fsum(problem.seconds[last:])
            ties = any(min(one.blocks) < first and max(one.blocks) >= last for one in problem.tied)
            if ties and seconds <= MOST_SHARES * share:
                found[first, last] = seconds
    if found:
        least = min(found, key=lambda ends: found[ends])
        nearest = min(found, key=lambda ends: abs(found[ends] - share))
        yield from dict.fromkeys((least, nearest))


def _around(problem: DivisionProblem, host: int, first: int, last: int) -> FoundDivision | None:
    """Return the best division of the blocks between over the other hosts; None if it does not fit."""
    there = problem.hosts[host]
    others = [number for number in range(len(problem.hosts)) if number != host]
    compute = (math.fsum(problem.seconds[:first]) + math.fsum(problem.seconds[last:])) / there.speed
    (forth, back), (forth_in, back_out) = problem.crossing(first), problem.crossing(last)
    wire = max((forth + back_out) / there.rate_out, (back + forth_in) / there.rate_in)
    if not _has_room(problem, host, first, last):
        return None
    inner = partition(
        replace(
            problem,
            seconds=problem.seconds[first:last],
            weight_bytes=problem.weight_bytes[first:last],
            held_bytes=problem.held_bytes[first:last],
            forward_bytes=problem.forward_bytes[first : last - 1],
            backward_bytes=problem.backward_bytes[first : last - 1],
            hosts=tuple(problem.hosts[other] for other in others),
            tied=tuple(_without_ends(one, first, last) for one in problem.tied),
            entering=(forth, back),
            leaving=(forth_in, back_out),
            hosts_beyond=(1, 1),
            least_rest=(problem.microbatches - 1) * max(compute, wire),
        )
    )
    if inner is None:
        return None
    between = [
        BlockStage(one.begin + first, one.end + first, tuple(others[place] for place in one.hosts))
        for one in inner.stages
    ]
    stages = (BlockStage(0, first, (host,)), *between, BlockStage(last, problem.num_blocks, (host,)))
    return FoundDivision(stages, inner.seconds + compute + forth_in / there.rate_in + back / there.rate_in)


def _has_room(problem: DivisionProblem, host: int, first: int, last: int) -> bool:
    """Whether a host's memory has room for the blocks before `first` and from `last` on.

    For each of these stages, the host counts once more, as one beyond the others.
    """
    beginning, end = BlockStage(0, first, (host,)), BlockStage(last, problem.num_blocks, (host,))
    kept = between_steps = 0.0
    for stage, beyond, num_behind in ((beginning, (0, 1), len(problem.hosts) - 1), (end, (1, 0), 0)):
        under_way = replace(problem, hosts_beyond=beyond).num_under_way(1, num_behind)
        held = math.fsum(problem.held_bytes[stage.begin : stage.end])
        entering = problem.crossing(stage.begin)[0]
        kept += problem.kept_bytes(under_way, held, entering)
        between_steps += problem.bytes_between_steps(under_way, held, entering)
    needed = problem.needed_bytes(problem.trained_bytes([beginning, end]), kept, between_steps, num_copies=0)
    return needed <= problem.hosts[host].memory


def _without_ends(weight: TiedWeight, first: int, last: int) -> TiedWeight:
    """Return a weight as the blocks between use it."""
    blocks = (block - first if first <= block < last else -1 for block in weight.blocks)
    return weight._replace(blocks=tuple(dict.fromkeys(blocks)))
