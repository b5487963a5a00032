"""Closed forms of how much each member of a collective sends to each other member.

A `Flow` lists terms: from a source to a destination, `weight` times the elements of the chunks `first` to `last`. One
or two terms sum up what all rounds carry between two members, so a ring among n members has 2n terms where its
expansion has n(n-1) moves. "All but one chunk" is two terms: all chunks, and the one chunk with weight -1. The formulas
are independent of `expansion`, so that a test can compare the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autosync.plan.types import Algorithm, Collective, NamedAlgorithm
from autosync.strategy.shapes.trees import ABSENT, OVER_TREES, Parents, TreeShape

Integers = npt.NDArray[np.int64]


class CollectiveFlow(NamedTuple):
    """Terms as columns. Members and chunks are positions in the group; `num_chunks` is 1 if the buffer is not split."""

    source: Integers
    destination: Integers
    first: Integers
    last: Integers
    weight: Integers
    num_chunks: int

    def num_elements(self, bounds: Integers) -> Integers:
        """Return the elements of each term; `bounds` says where each chunk begins and the last one ends."""
        elements: Integers = self.weight * (bounds[self.last] - bounds[self.first])
        return elements

    def then(self, other: CollectiveFlow) -> CollectiveFlow:
        """Return a flow with the terms of both."""
        return CollectiveFlow(
            np.concatenate((self.source, other.source)),
            np.concatenate((self.destination, other.destination)),
            np.concatenate((self.first, other.first)),
            np.concatenate((self.last, other.last)),
            np.concatenate((self.weight, other.weight)),
            self.num_chunks,
        )


@functools.lru_cache(maxsize=1024)
def flow(collective: Collective, algorithm: Algorithm, num_members: int) -> CollectiveFlow:
    """Return the sends of a collective among its members, with member 0 as the root."""
    if isinstance(algorithm, TreeShape):
        return _over_trees(algorithm, collective, num_members)
    formula = _FORMULAS.get((collective, algorithm))
    if formula is None:
        raise ValueError(f"{collective} has no algorithm {algorithm}")
    if num_members == 1:
        return _NOTHING
    return formula(num_members)


def _terms(
    source: npt.ArrayLike, destination: npt.ArrayLike, first: npt.ArrayLike, last: npt.ArrayLike, *, num_chunks: int
) -> CollectiveFlow:
    """Make terms of weight 1; a scalar fills a whole column."""
    given = (np.asarray(column, dtype=np.int64) for column in (source, destination, first, last))
    sources, destinations, firsts, lasts = np.broadcast_arrays(*given)
    return CollectiveFlow(sources, destinations, firsts, lasts, np.ones(len(sources), dtype=np.int64), num_chunks)


_NOTHING = _terms([], [], [], [], num_chunks=1)


def _over_trees(shape: TreeShape, collective: Collective, n: int) -> CollectiveFlow:
    """Return a collective over trees: an all-reduce, or one of its halves.

    For each share, every rank but the root sends all of it to its parent in one tree (not in an all-gather) and gets
    all of it from its parent in the other (not in a reduce-scatter).
    """
    if collective not in OVER_TREES:
        raise ValueError(f"{collective} has no algorithm {shape}")
    if n == 1:
        return _NOTHING
    if n != shape.num_ranks:
        raise ValueError(f"trees over {shape.num_ranks} ranks for a group of {n} (as many ranks as members)")
    first, last = np.array(shape.ranges).T
    found = _NOTHING._replace(num_chunks=shape.num_units)
    if collective != "all_gather":
        number, rank, parent = _edges([share.up for share in shape.shares])
        found = found.then(_terms(rank, parent, first[number], last[number], num_chunks=shape.num_units))
    if collective != "reduce_scatter":
        number, rank, parent = _edges([share.distribution for share in shape.shares])
        found = found.then(_terms(parent, rank, first[number], last[number], num_chunks=shape.num_units))
    return found


def _edges(trees: Sequence[Parents]) -> tuple[Integers, Integers, Integers]:
    """Return the edges of trees as columns: the tree, the rank and its parent."""
    parents = np.array(trees)
    number, rank = np.nonzero((parents != np.arange(parents.shape[1])) & (parents != ABSENT))
    return number, rank, parents[number, rank]


def _ring(n: int, *, left_out: int) -> CollectiveFlow:
    """Return a ring: each member sends its successor all chunks but its own (`left_out` 0) or the successor's (1)."""
    member = np.arange(n)
    chunk = (member + left_out) % n
    everything = _terms(member, (member + 1) % n, 0, n, num_chunks=n)
    but_one = _terms(member, (member + 1) % n, chunk, chunk + 1, num_chunks=n)
    return everything.then(but_one._replace(weight=-but_one.weight))


def _tree(n: int, *, up: bool, num_chunks: int = 1) -> CollectiveFlow:
    """Return a tree: each member but the root sends everything to its parent (`up`), or the parent sends it everything.

    The parent is the member's number without its lowest bit.
    """
    member = np.arange(1, n)
    parent = member & (member - 1)
    source, destination = (member, parent) if up else (parent, member)
    return _terms(source, destination, 0, num_chunks, num_chunks=num_chunks)


def _star(n: int, *, up: bool) -> CollectiveFlow:
    member = np.arange(1, n)
    root = np.zeros_like(member)
    source, destination = (member, root) if up else (root, member)
    return _terms(source, destination, 0, 1, num_chunks=1)


def _star_gather(n: int) -> CollectiveFlow:
    member = np.arange(1, n)
    return _terms(member, 0, member, member + 1, num_chunks=n)


def _exchange(n: int, *, halving: bool) -> CollectiveFlow:
    """Return exchanges: partners at each distance d = 1, 2, 4 and so on send each other d chunks.

    They are the receiver's chunks if `halving`, else the sender's.
    """
    distance = 1 << np.arange(n.bit_length() - 1)[:, None]
    member = np.broadcast_to(np.arange(n), (len(distance), n))
    partner = member ^ distance
    first = (partner if halving else member) // distance * distance
    return _terms(member.ravel(), partner.ravel(), first.ravel(), (first + distance).ravel(), num_chunks=n)


def _power_of_two(n: int, *, halving: bool) -> CollectiveFlow:
    if n & (n - 1):
        raise ValueError(f"halving and doubling among {n} (a power of two)")
    return _exchange(n, halving=halving)


def _folded(n: int) -> CollectiveFlow:
    """Return halving-doubling for any n.

    The first p members (p the largest power of two) halve and double; each other member sends all it has to one of
    them, and receives the result.
    """
    p = 1 << (n.bit_length() - 1)
    extra = np.arange(n - p)
    folds = _terms(p + extra, extra, 0, n, num_chunks=n).then(_terms(extra, p + extra, 0, n, num_chunks=n))
    core = _exchange(p, halving=True).then(_exchange(p, halving=False))
    # Block k of the first p members begins at chunk k·(n // p) + min(k, n % p): whole chunks, as evenly as possible.
    start = np.arange(p + 1) * (n // p) + np.minimum(np.arange(p + 1), n % p)
    return folds.then(core._replace(first=start[core.first], last=start[core.last], num_chunks=n))


def _ring_all_reduce(n: int) -> CollectiveFlow:
    return _ring(n, left_out=0).then(_ring(n, left_out=1))


def _tree_all_reduce(n: int) -> CollectiveFlow:
    return _tree(n, up=True, num_chunks=n).then(_tree(n, up=False, num_chunks=n))


_FORMULAS: Mapping[tuple[Collective, NamedAlgorithm], Callable[[int], CollectiveFlow]] = {
    ("all_reduce", "native"): _ring_all_reduce,
    ("all_reduce", "ring"): _ring_all_reduce,
    ("all_reduce", "tree"): _tree_all_reduce,
    ("all_reduce", "halving_doubling"): _folded,
    ("reduce_scatter", "native"): functools.partial(_ring, left_out=0),
    ("reduce_scatter", "ring"): functools.partial(_ring, left_out=0),
    ("reduce_scatter", "halving_doubling"): functools.partial(_power_of_two, halving=True),
    ("all_gather", "native"): functools.partial(_ring, left_out=1),
    ("all_gather", "ring"): functools.partial(_ring, left_out=1),
    ("all_gather", "halving_doubling"): functools.partial(_power_of_two, halving=False),
    ("all_gather_v", "native"): functools.partial(_ring, left_out=1),
    ("all_gather_v", "ring"): functools.partial(_ring, left_out=1),
    ("reduce", "native"): functools.partial(_tree, up=True),
    ("reduce", "tree"): functools.partial(_tree, up=True),
    ("reduce", "star"): functools.partial(_star, up=True),
    ("broadcast", "native"): functools.partial(_tree, up=False),
    ("broadcast", "tree"): functools.partial(_tree, up=False),
    ("broadcast", "star"): functools.partial(_star, up=False),
    ("gather_v", "star"): _star_gather,
    ("send", "star"): functools.partial(_star, up=False),
}
