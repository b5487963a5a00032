"""Weighted trees over ranks: the general shape of an all-reduce.

A shape is a list of shares. Each share carries a part of the buffer, in proportion to its weight, over two trees with
one root: sums travel up the reduction tree to the root, the result travels down the distribution tree to all ranks. The
two trees may differ, because links may be faster in one direction. Shares follow one another in the buffer.

Servers may take part as inner nodes: they bring nothing and only add up or pass on. Many systems are special cases. A
star is a parameter server, a path is a chain, and two levels with changing roots are a rack-aware collective.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autosync.documents import STRICT

MAX_SHARES = 1024
"""The most shares of a shape: each share costs every rank messages."""
MAX_TOTAL_WEIGHT = 2**16
"""The largest sum of weights. A buffer is cut into that many equal units, of which a share gets its weight."""

ABSENT = -1
"""The parent of a server that has no part in a tree."""

OVER_TREES = frozenset({"all_reduce", "reduce_scatter", "all_gather"})
"""The collectives that can go over trees."""

Parents = tuple[int, ...]
"""The parent of each rank in a tree; the root is its own parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShare:
    """A share of a buffer: its weight, and the parent of each rank in its reduction and distribution trees.

    `up[r]` is the rank that rank r sends its sum to. `down[r]` is the rank that sends the result to rank r; if `down`
    is empty, it equals `up`. The root is its own parent in both. A server may be `ABSENT` in one of them or in both.
    """

    __pydantic_config__ = STRICT

    up: Parents
    down: Parents = ()
    weight: int = 1

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"a share of weight {self.weight} carries nothing (1 or more)")
        _check_tree("up", self.up)
        if self.down:
            _check_tree("down", self.down)
            if len(self.down) != len(self.up):
                raise ValueError(
                    f"trees of {len(self.up)} and {len(self.down)} ranks (up and down have the same ranks)"
                )
            if self.down[self.root] != self.root:
                raise ValueError(f"rank {self.root} is the root of up but not of down (both trees have one root)")

    @property
    def root(self) -> int:
        """The rank where sums are complete and distribution begins."""
        return next(rank for rank, parent in enumerate(self.up) if parent == rank)

    @property
    def distribution(self) -> Parents:
        """The parents in the distribution tree."""
        return self.down or self.up

    @property
    def num_ranks(self) -> int:
        return len(self.up)

    @property
    def absent(self) -> frozenset[int]:
        """The ranks that are absent in one of the trees."""
        return frozenset([rank for tree in (self.up, self.down) for rank, parent in enumerate(tree) if parent < 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """The shares of a collective.

    `name` is for people, such as `levels`; it has no part in equality. Plans use a shape as the algorithm of a
    transfer. Ranks are then positions in the transfer's group.
    """

    shares: tuple[TreeShare, ...]
    name: str = field(default="trees", compare=False)

    def __post_init__(self) -> None:
        check_shares(self.shares)

    def __str__(self) -> str:
        return self.name

    @property
    def num_ranks(self) -> int:
        return self.shares[0].num_ranks

    @property
    def num_units(self) -> int:
        """The number of equal units that the buffer is cut into: the sum of weights."""
        return sum([share.weight for share in self.shares])

    @property
    def widest(self) -> int:
        """The largest weight."""
        return max([share.weight for share in self.shares])

    @property
    def owned_units(self) -> tuple[int, ...]:
        """How many units each rank owns as a shard: those of the shares whose root it is."""
        found = [0] * self.num_ranks
        for share in self.shares:
            found[share.root] += share.weight
        return tuple(found)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The first unit of each share and the one after its last."""
        ends = [0, *itertools.accumulate([share.weight for share in self.shares])]
        return tuple(itertools.pairwise(ends))


def check_shares(shares: Sequence[TreeShare]) -> None:
    """Raise ValueError unless the shares make a shape."""
    if not shares:
        raise ValueError("a shape without shares carries nothing (at least one share)")
    if len(shares) > MAX_SHARES:
        raise ValueError(f"{len(shares)} shares (at most {MAX_SHARES})")
    sizes = sorted({share.num_ranks for share in shares})
    if len(sizes) > 1:
        raise ValueError(f"trees of {' and '.join(map(str, sizes))} ranks (all trees of a shape have the same ranks)")
    total = sum([share.weight for share in shares])
    if total > MAX_TOTAL_WEIGHT:
        raise ValueError(f"weights that add up to {total} (at most {MAX_TOTAL_WEIGHT})")


def simplified(shares: Sequence[TreeShare]) -> tuple[TreeShare, ...]:
    """Return shares that mean the same in one form.

    Weights have no common divisor, `down` is empty where it equals `up`, and last ranks that are absent everywhere are
    left out.
    """
    divisor = math.gcd(*[share.weight for share in shares])
    trees = [tree for share in shares for tree in (share.up, share.down)]
    size = 1 + max([rank for tree in trees for rank, parent in enumerate(tree) if parent != ABSENT])
    return tuple(
        [
            replace(
                share,
                weight=share.weight // divisor,
                up=share.up[:size],
                down=() if share.down == share.up else share.down[:size],
            )
            for share in shares
        ]
    )


def by_root(shares: Sequence[TreeShare]) -> tuple[TreeShare, ...]:
    """Return shares in the order of their roots, so that what a rank owns is one range of the buffer."""
    return tuple(sorted(shares, key=lambda share: share.root))


def depths(parents: Parents) -> list[int]:
    """Return the number of steps from each rank to the root; -1 for absent ranks."""
    found = [-1] * len(parents)
    for rank in [rank for rank, parent in enumerate(parents) if parent != ABSENT]:
        path = []
        place = rank
        while found[place] < 0 and parents[place] != place:
            path.append(place)
            place = parents[place]
        depth = max(found[place], 0)
        found[place] = depth
        for number, one in enumerate(reversed(path), start=1):
            found[one] = depth + number
    return found


def heights(parents: Parents) -> list[int]:
    """Return the number of steps from each rank down to the farthest rank below it."""
    far = depths(parents)
    found = [0] * len(parents)
    for rank in sorted(range(len(parents)), key=far.__getitem__, reverse=True):
        if parents[rank] not in (rank, ABSENT):
            found[parents[rank]] = max(found[parents[rank]], found[rank] + 1)
    return found


class TreeEdge(NamedTuple):
    """In `round`, a rank sends a share's sum or result to another."""

    round: int
    source: int
    destination: int


def edges_up(up: Parents) -> Iterator[TreeEdge]:
    """Yield the edges of a reduction tree: each rank sends its sum when all ranks below it have sent theirs."""
    rounds = heights(up)
    for rank, parent in enumerate(up):
        if parent not in (rank, ABSENT):
            yield TreeEdge(rounds[rank], rank, parent)


def edges_down(down: Parents, *, begin: int) -> Iterator[TreeEdge]:
    """Yield the edges of a distribution tree, whose root has the result from round `begin` on."""
    for rank, (parent, depth) in enumerate(zip(down, depths(down), strict=True)):
        if parent not in (rank, ABSENT):
            yield TreeEdge(begin + depth - 1, parent, rank)


def _check_tree(name: str, parents: Parents) -> None:
    """Raise ValueError unless the parents make one tree over all ranks that are not absent."""
    num_ranks = len(parents)
    if num_ranks < 2:
        raise ValueError(f"{name} has {num_ranks} ranks (a tree has 2 or more)")
    for rank, parent in enumerate(parents):
        if parent != ABSENT and not 0 <= parent < num_ranks:
            rule = f"0 to {num_ranks - 1}, or {ABSENT} for a server that is absent"
            raise ValueError(f"{name}: the parent of rank {rank} is {parent} ({rule})")
        if parent != ABSENT and parents[parent] == ABSENT:
            raise ValueError(f"{name}: the parent of rank {rank} is {parent}, which is absent (a rank in the tree)")
    roots = [rank for rank, parent in enumerate(parents) if rank == parent]
    if len(roots) != 1:
        shown = ", ".join(map(str, roots)) or "none"
        raise ValueError(f"{name} has {len(roots)} roots: {shown} (one rank is its own parent)")
    known = [rank == roots[0] for rank in range(num_ranks)]
    for rank in [rank for rank, parent in enumerate(parents) if parent != ABSENT]:
        path: list[int] = []
        place = rank
        while not known[place]:
            path.append(place)
            if len(path) > num_ranks:
                raise ValueError(f"{name}: rank {rank} does not lead to the root {roots[0]} (a tree has no circles)")
            place = parents[place]
        for one in path:
            known[one] = True
