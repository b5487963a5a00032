"""Transfers as rounds of moves between members.

One pure function expands a collective into moves (round, source, destination, chunks, copy or add). The point-to-point
executor, the reference and the byte tests use it; nothing is ever stored, for the moves depend on collective,
algorithm and number of members alone. Moves of one round happen at once: all read before any writes. Members and
chunks are positions in the group: member i owns chunk i. A collective that is not split (reduce and broadcast) has
the one chunk 0.

`native` stands for what the backends do: a ring for the symmetric collectives, a binomial tree for the rooted ones.
Sizes come in only in `chunk_bounds`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from autosync.plan.types import Algorithm, Collective


class Move(NamedTuple):
    """In a round, `source` sends chunks `first` to `last` (exclusive) to `destination`, which adds or overwrites."""

    round: int
    source: int
    destination: int
    first: int
    last: int
    adds: bool


def chunk_bounds(num_elements: int, num_chunks: int) -> tuple[int, ...]:
    """Where chunks begin and end: as even as can be, the longer ones first."""
    size, rest = divmod(num_elements, num_chunks)
    return tuple(index * size + min(index, rest) for index in range(num_chunks + 1))


def num_chunks(collective: Collective, num_members: int) -> int:
    """In how many chunks a collective's buffer is split."""
    return 1 if collective in ("reduce", "broadcast") else num_members


@functools.lru_cache(maxsize=4096)
def expand(collective: Collective, algorithm: Algorithm, num_members: int) -> tuple[Move, ...]:
    """The moves of a collective among n members, the root being member 0, in the order of their rounds."""
    if num_members == 1:
        return ()
    moves = _EXPANSIONS.get((collective, algorithm))
    if moves is None:
        raise ValueError(f"{collective} has no algorithm {algorithm}")
    return tuple(moves(num_members))


def has_algorithm(collective: Collective, algorithm: Algorithm) -> bool:
    """Whether a collective can be expanded with an algorithm."""
    return (collective, algorithm) in _EXPANSIONS


def _then(first: Iterator[Move], second: Iterator[Move], *, every_chunk: int = 0) -> list[Move]:
    """One phase after another; `every_chunk` makes unsplit moves carry that many chunks."""
    moves = list(first)
    shift = 1 + max(move.round for move in moves)
    moves += [move._replace(round=move.round + shift) for move in second]
    return [move._replace(last=every_chunk) for move in moves] if every_chunk else moves


def _ring_reduce_scatter(n: int) -> Iterator[Move]:
    """Chunk c starts at member c+1 and, gathering sums, travels round the ring to its owner c."""
    for step in range(n - 1):
        for member in range(n):
            chunk = (member - 1 - step) % n
            yield Move(step, member, (member + 1) % n, chunk, chunk + 1, adds=True)


def _ring_all_gather(n: int) -> Iterator[Move]:
    """Each chunk starts at its owner and travels round the ring to all."""
    for step in range(n - 1):
        for member in range(n):
            chunk = (member - step) % n
            yield Move(step, member, (member + 1) % n, chunk, chunk + 1, adds=False)


def _tree_reduce(n: int) -> Iterator[Move]:
    """Binomial tree: in round r every odd multiple of 2^r sends its sum to the even one below it."""
    for level, distance in enumerate(_powers_below(n)):
        for member in range(distance, n, 2 * distance):
            yield Move(level, member, member - distance, 0, 1, adds=True)


def _tree_broadcast(n: int) -> Iterator[Move]:
    """The tree of the reduction, walked the other way."""
    for level, distance in enumerate(reversed(_powers_below(n))):
        for member in range(distance, n, 2 * distance):
            yield Move(level, member - distance, member, 0, 1, adds=False)


def _halving(n: int) -> Iterator[Move]:
    """Recursive halving among a power of two: each sends the half that its partner keeps."""
    _require_power_of_two(n)
    for level, distance in enumerate(reversed(_powers_below(n))):
        for member in range(n):
            partner = member ^ distance
            first = (partner // distance) * distance
            yield Move(level, member, partner, first, first + distance, adds=True)


def _doubling(n: int) -> Iterator[Move]:
    """Recursive doubling among a power of two: each sends all that it has."""
    _require_power_of_two(n)
    for level, distance in enumerate(_powers_below(n)):
        for member in range(n):
            first = (member // distance) * distance
            yield Move(level, member, member ^ distance, first, first + distance, adds=False)


def _star_reduce(n: int) -> Iterator[Move]:
    return (Move(0, member, 0, 0, 1, adds=True) for member in range(1, n))


def _star_broadcast(n: int) -> Iterator[Move]:
    return (Move(0, 0, member, 0, 1, adds=False) for member in range(1, n))


def _star_gather(n: int) -> Iterator[Move]:
    return (Move(0, member, 0, member, member + 1, adds=False) for member in range(1, n))


def _ring_all_reduce(n: int) -> list[Move]:
    return _then(_ring_reduce_scatter(n), _ring_all_gather(n))


def _tree_all_reduce(n: int) -> list[Move]:
    return _then(_tree_reduce(n), _tree_broadcast(n), every_chunk=n)


def _folded_all_reduce(n: int) -> list[Move]:
    """Halving-doubling for any n: members beyond the largest power of two fold into a partner and hear the result last.

    The core of p members works on p super-chunks, which cover the n chunks as evenly as whole chunks allow.
    """
    core = 1 << (n.bit_length() - 1)
    bounds = chunk_bounds(n, core)
    fold = [Move(0, core + extra, extra, 0, n, adds=True) for extra in range(n - core)]
    unfold = [Move(0, extra, core + extra, 0, n, adds=False) for extra in range(n - core)]
    inner = _then(_halving(core), _doubling(core)) if core > 1 else []
    moves = list(fold)
    for phase in (inner, unfold):
        shift = 1 + max((move.round for move in moves), default=-1)
        moves += [move._replace(round=move.round + shift) for move in phase]
    start, stop = len(fold), len(fold) + len(inner)
    moves[start:stop] = [m._replace(first=bounds[m.first], last=bounds[m.last]) for m in moves[start:stop]]
    return moves


def _require_power_of_two(n: int) -> None:
    if n & (n - 1):
        raise ValueError(f"halving among {n} members: only a power of two can be halved to the end")


def _powers_below(n: int) -> list[int]:
    powers = []
    distance = 1
    while distance < n:
        powers.append(distance)
        distance *= 2
    return powers


_EXPANSIONS: Mapping[tuple[Collective, Algorithm], Callable[[int], Iterable[Move]]] = {
    ("all_reduce", "native"): _ring_all_reduce,
    ("all_reduce", "ring"): _ring_all_reduce,
    ("all_reduce", "tree"): _tree_all_reduce,
    ("all_reduce", "halving_doubling"): _folded_all_reduce,
    ("reduce_scatter", "native"): _ring_reduce_scatter,
    ("reduce_scatter", "ring"): _ring_reduce_scatter,
    ("reduce_scatter", "halving_doubling"): _halving,
    ("all_gather", "native"): _ring_all_gather,
    ("all_gather", "ring"): _ring_all_gather,
    ("all_gather", "halving_doubling"): _doubling,
    ("all_gather_v", "native"): _ring_all_gather,
    ("all_gather_v", "ring"): _ring_all_gather,
    ("reduce", "native"): _tree_reduce,
    ("reduce", "tree"): _tree_reduce,
    ("reduce", "star"): _star_reduce,
    ("broadcast", "native"): _tree_broadcast,
    ("broadcast", "tree"): _tree_broadcast,
    ("broadcast", "star"): _star_broadcast,
    ("gather_v", "star"): _star_gather,
}
