"""Summarises the moves of a collective without listing all of them.

A ring among n members has n(n-1) moves, a million on a thousand hosts, but each member does the same, so formulas give
its outline. All other algorithms have at most n log n moves, which are counted.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from autosync.plan.expansion import expand
from autosync.plan.types import Algorithm, Collective


class Outline(NamedTuple):
    """The number of rounds and moves, the most chunks that one member adds up, and the members that receive data."""

    num_rounds: int
    num_moves: int
    most_added: int
    receivers: tuple[int, ...]


def is_ring(collective: Collective, algorithm: Algorithm) -> bool:
    """Whether every member sends a chunk to the next member in every round."""
    return algorithm in {"ring", "native"} and collective in {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_gather_v",
    }


@functools.lru_cache(maxsize=1024)
def outline(collective: Collective, algorithm: Algorithm, num_members: int) -> Outline:
    """Return the outline of `expand(collective, algorithm, num_members)`."""
    if num_members == 1:
        return Outline(0, 0, 0, ())
    if is_ring(collective, algorithm):
        num_rounds = (num_members - 1) * (2 if collective == "all_reduce" else 1)
        adds = num_members - 1 if collective in {"all_reduce", "reduce_scatter"} else 0
        return Outline(num_rounds, num_rounds * num_members, adds, tuple(range(num_members)))
    moves = expand(collective, algorithm, num_members)
    added = [0] * num_members
    for move in moves:
        if move.adds:
            added[move.destination] += move.last - move.first
    receivers = tuple(sorted({move.destination for move in moves}))
    return Outline(1 + max(move.round for move in moves), len(moves), max(added), receivers)
