"""Expands transfers into rounds of moves between members.

One pure function expands a collective into moves (round, source, destination, chunks, copy or add). The point-to-point
executor, the reference and the byte tests use it. Plans do not store moves, because moves depend only on the
collective, the algorithm and the number of members. The moves of one round happen at once: all read before any writes.
Members and chunks are positions in the group: member i owns chunk i. A collective that is not split (reduce and
broadcast) has only chunk 0.

`native` stands for the backend's own algorithm: a ring for the symmetric collectives, a binomial tree for the rooted
ones. Over trees (`TreeShape`), the chunks are the shape's units. Only `chunk_bounds` deals with sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from autosync.plan.types import Algorithm, Collective, NamedAlgorithm
from autosync.strategy.shapes.trees import OVER_TREES, TreeShape, TreeShare, edges_down, edges_up, heights


class Move(NamedTuple):
    """In `round`, `source` sends the chunks from `first` up to `last` to `destination`, which adds or overwrites."""

    round: int
    source: int
    destination: int
    first: int
    last: int
    adds: bool


def chunk_bounds(num_elements: int, num_chunks: int) -> tuple[int, ...]:
    """Return where chunks begin and the last one ends; lengths differ by at most 1, and longer chunks come first."""
    size, rest = divmod(num_elements, num_chunks)
    return tuple(index * size + min(index, rest) for index in range(num_chunks + 1))


def num_chunks(collective: Collective, num_members: int, algorithm: Algorithm = "native") -> int:
    """Return the number of chunks that a collective's buffer is split into."""
    if isinstance(algorithm, TreeShape):
        return algorithm.num_units
    return 1 if collective in ("reduce", "broadcast", "send") else num_members


@functools.lru_cache(maxsize=4096)
def expand(collective: Collective, algorithm: Algorithm, num_members: int) -> tuple[Move, ...]:
    """Return the moves of a collective in the order of their rounds; member 0 is the root."""
    if num_members == 1:
        return ()
    if not has_algorithm(collective, algorithm):
        raise ValueError(f"{collective} has no algorithm {algorithm}")
    if isinstance(algorithm, TreeShape):
        return _over_trees(algorithm, collective, num_members)
    return tuple(_EXPANSIONS[collective, algorithm](num_members))


def ring_moves(collective: Collective, num_members: int, sources: Sequence[int]) -> tuple[Move, ...]:
    """Return the moves that leave some members of a ring, in the order of rounds; `expand` has a million for all."""
    among = frozenset(sources)
    if collective == "all_reduce":
        first, second = _ring_reduce_scatter(num_members, among), _ring_all_gather(num_members, among)
        return tuple(_then(first, second))
    one = _ring_reduce_scatter if collective == "reduce_scatter" else _ring_all_gather
    return tuple(one(num_members, among))


def has_algorithm(collective: Collective, algorithm: Algorithm) -> bool:
    """Whether a collective can be expanded with an algorithm."""
    if isinstance(algorithm, TreeShape):
        return collective in OVER_TREES
    return (collective, algorithm) in _EXPANSIONS


def _over_trees(shape: TreeShape, collective: Collective, n: int) -> tuple[Move, ...]:
    """Return the moves of an all-reduce over trees, or of one of its halves.

    All shares begin in round 0. Within a round, moves are in the order of shares.
    """
    if shape.num_ranks != n:
        raise ValueError(f"trees over {shape.num_ranks} ranks for a group of {n} (as many ranks as members)")
    moves = [
        move
        for share, units in zip(shape.shares, shape.ranges, strict=True)
        for move in _of_share(share, collective, *units)
    ]
    return tuple(sorted(moves, key=lambda move: (move.round, move.first, move.source, move.destination)))


def _of_share(share: TreeShare, collective: Collective, first: int, last: int) -> Iterator[Move]:
    """Yield the moves of one share."""
    begin = 0
    if collective != "all_gather":
        begin = heights(share.up)[share.root]
        yield from (Move(*edge, first, last, adds=True) for edge in edges_up(share.up))
    if collective != "reduce_scatter":
        yield from (Move(*edge, first, last, adds=False) for edge in edges_down(share.distribution, begin=begin))


def _then(first: Iterator[Move], second: Iterator[Move], *, every_chunk: int = 0) -> list[Move]:
    """Return the moves of two phases, one after the other; each carries the chunks 0 to `every_chunk`, if given."""
    moves = list(first)
    shift = 1 + max(move.round for move in moves)
    moves += [move._replace(round=move.round + shift) for move in second]
    return [move._replace(last=every_chunk) for move in moves] if every_chunk else moves


def _ring_reduce_scatter(n: int, sources: Iterable[int] | None = None) -> Iterator[Move]:
    """Yield moves: chunk c starts at member c+1, travels round the ring to member c, and is summed on its way.

    With `sources`, only the moves that leave these members.
    """
    members = range(n) if sources is None else sorted(sources)
    for step in range(n - 1):
        for member in members:
            chunk = (member - 1 - step) % n
            yield Move(step, member, (member + 1) % n, chunk, chunk + 1, adds=True)


def _ring_all_gather(n: int, sources: Iterable[int] | None = None) -> Iterator[Move]:
    """Yield moves: each chunk starts at its owner and travels round the ring to all members.

    With `sources`, only the moves that leave these members.
    """
    members = range(n) if sources is None else sorted(sources)
    for step in range(n - 1):
        for member in members:
            chunk = (member - step) % n
            yield Move(step, member, (member + 1) % n, chunk, chunk + 1, adds=False)


def _tree_reduce(n: int) -> Iterator[Move]:
    """Yield a binomial tree: in round r each odd multiple of 2^r sends its sum to the even multiple below it."""
    for level, distance in enumerate(_powers_below(n)):
        for member in range(distance, n, 2 * distance):
            yield Move(level, member, member - distance, 0, 1, adds=True)


def _tree_broadcast(n: int) -> Iterator[Move]:
    """Yield the moves of the reduction's tree in reverse."""
    for level, distance in enumerate(reversed(_powers_below(n))):
        for member in range(distance, n, 2 * distance):
            yield Move(level, member - distance, member, 0, 1, adds=False)


def _halving(n: int) -> Iterator[Move]:
    """Yield the moves of recursive halving (n a power of two): each member sends the half that its partner keeps."""
    _require_power_of_two(n)
    for level, distance in enumerate(reversed(_powers_below(n))):
        for member in range(n):
            partner = member ^ distance
            first = (partner // distance) * distance
            yield Move(level, member, partner, first, first + distance, adds=True)


def _doubling(n: int) -> Iterator[Move]:
    """Yield the moves of recursive doubling (n a power of two): each member sends all the chunks that it has."""
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
    """Return halving-doubling for any n.

    Each member beyond the largest power of two p first sends its buffer to a partner among the first p members, and
    receives the result last. These p members work on p super-chunks, which cover the n chunks as evenly as possible.
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


_EXPANSIONS: Mapping[tuple[Collective, NamedAlgorithm], Callable[[int], Iterable[Move]]] = {
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
    ("send", "star"): _star_broadcast,
}
