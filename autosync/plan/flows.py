"""How many bytes each member of a collective sends to which other, in closed form.

A `Flow` lists terms: from a source to a destination, `weight` times the elements of the chunks `first` to `last`.
What several rounds carry over one edge is a term or two, so a ring among n has 2n terms where its expansion has
n(n-1) moves; "all but one chunk" is the whole and, with weight -1, the chunk. The formulas here know nothing of
`expansion`, so that a test can hold the two against each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autosync.plan.types import Algorithm, Collective

Integers = npt.NDArray[np.int64]


class Flow(NamedTuple):
    """Terms as columns; members and chunks are positions in the group, `num_chunks` is 1 where nothing is split."""

    source: Integers
    destination: Integers
    first: Integers
    last: Integers
    weight: Integers
    num_chunks: int

    def num_elements(self, bounds: Integers) -> Integers:
        """The elements of each term, where `bounds` says at which element each chunk begins and the last one ends."""
        elements: Integers = self.weight * (bounds[self.last] - bounds[self.first])
        return elements

    def then(self, other: Flow) -> Flow:
        """Both, one after the other."""
        return Flow(
            np.concatenate((self.source, other.source)),
            np.concatenate((self.destination, other.destination)),
            np.concatenate((self.first, other.first)),
            np.concatenate((self.last, other.last)),
            np.concatenate((self.weight, other.weight)),
            self.num_chunks,
        )


@functools.lru_cache(maxsize=1024)
def flow(collective: Collective, algorithm: Algorithm, num_members: int) -> Flow:
    """What a collective sends among n members, the root being member 0."""
    formula = _FORMULAS.get((collective, algorithm))
    if formula is None:
        raise ValueError(f"{collective} has no algorithm {algorithm}")
    if num_members == 1:
        return _terms([], [], [], [], num_chunks=1)
    return formula(num_members)


def _terms(
    source: npt.ArrayLike, destination: npt.ArrayLike, first: npt.ArrayLike, last: npt.ArrayLike, *, num_chunks: int
) -> Flow:
    """Terms of weight 1; a scalar stands for a column of it."""
    given = (np.asarray(column, dtype=np.int64) for column in (source, destination, first, last))
    sources, destinations, firsts, lasts = np.broadcast_arrays(*given)
    return Flow(sources, destinations, firsts, lasts, np.ones(len(sources), dtype=np.int64), num_chunks)


def _ring(n: int, *, left_out: int) -> Flow:
    """Each member sends its successor everything but one chunk: its own (`left_out` 0) or the successor's (1)."""
    member = np.arange(n)
    chunk = (member + left_out) % n
    everything = _terms(member, (member + 1) % n, 0, n, num_chunks=n)
    but_one = _terms(member, (member + 1) % n, chunk, chunk + 1, num_chunks=n)
    return everything.then(but_one._replace(weight=-but_one.weight))


def _tree(n: int, *, up: bool, num_chunks: int = 1) -> Flow:
    """Each member but the root is linked with the one that lacks its lowest bit, and everything passes once."""
    member = np.arange(1, n)
    parent = member & (member - 1)
    source, destination = (member, parent) if up else (parent, member)
    return _terms(source, destination, 0, num_chunks, num_chunks=num_chunks)


def _star(n: int, *, up: bool) -> Flow:
    member = np.arange(1, n)
    root = np.zeros_like(member)
    source, destination = (member, root) if up else (root, member)
    return _terms(source, destination, 0, 1, num_chunks=1)


def _star_gather(n: int) -> Flow:
    member = np.arange(1, n)
    return _terms(member, 0, member, member + 1, num_chunks=n)


def _exchange(n: int, *, halving: bool) -> Flow:
    """Over each power of two below n as distance, partners exchange a block as long: the receiver's or the sender's."""
    distance = 1 << np.arange(n.bit_length() - 1)[:, None]
    member = np.broadcast_to(np.arange(n), (len(distance), n))
    partner = member ^ distance
    first = (partner if halving else member) // distance * distance
    return _terms(member.ravel(), partner.ravel(), first.ravel(), (first + distance).ravel(), num_chunks=n)


def _power_of_two(n: int, *, halving: bool) -> Flow:
    if n & (n - 1):
        raise ValueError(f"halving and doubling among {n} (a power of two)")
    return _exchange(n, halving=halving)


def _folded(n: int) -> Flow:
    """Halving and doubling among the largest power of two p; the others give all they have and are given the result."""
    p = 1 << (n.bit_length() - 1)
    extra = np.arange(n - p)
    folds = _terms(p + extra, extra, 0, n, num_chunks=n).then(_terms(extra, p + extra, 0, n, num_chunks=n))
    core = _exchange(p, halving=True).then(_exchange(p, halving=False))
    # Block k of the core is as many whole chunks as even as can be: chunks k·(n // p) + min(k, n % p) and on.
    start = np.arange(p + 1) * (n // p) + np.minimum(np.arange(p + 1), n % p)
    return folds.then(core._replace(first=start[core.first], last=start[core.last], num_chunks=n))


def _ring_all_reduce(n: int) -> Flow:
    return _ring(n, left_out=0).then(_ring(n, left_out=1))


def _tree_all_reduce(n: int) -> Flow:
    return _tree(n, up=True, num_chunks=n).then(_tree(n, up=False, num_chunks=n))


_FORMULAS: Mapping[tuple[Collective, Algorithm], Callable[[int], Flow]] = {
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
}
