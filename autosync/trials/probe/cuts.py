"""Finds the cuts that limit measured loads: groups of nodes that together send or receive no more than a fixed rate.

A cut is a set of senders: what its nodes send to all other nodes shares one limit. The uplink of a rack is two cuts:
the rack's nodes are the senders on the way out, and all other nodes are the senders on the way in.

A star of a load that gets clearly less than its nodes get alone must cross a cut that is full. A cut is full in a load
if as much crosses it as in any load. A set of nodes that shares no link has a varying sum, and so explains few of the
stars. The fewest cuts that explain the most stars are chosen. How a full link divides its rate does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autosync.trials.probe.loads import AloneRates, Star, stars_of
from autosync.trials.probe.request import LoadSamples

DEFICIENT = 0.9
"""A star is deficient if it gets less than this share of what its nodes get alone."""
FULL = 0.93
"""A cut is full if at least this share of its largest rate crosses it."""
MOST_NODES_IN_ALL_SETS = 12
"""With more nodes, only sets of nodes that are deficient together are looked at."""

_LEAST_AT_BEST = 0.85
_LEAST_EXPLAINED = 2.0
_LEAST_SHARE_EXPLAINED = 0.03
_MOST_CUTS = 12

_Bools = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The senders on one side of a shared link, its rate in bytes per second, and the number of stars it explains."""

    senders: tuple[int, ...]
    rate: float
    num_explained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The cuts that explain the deficient stars, and how many of these there are."""

    cuts: tuple[Cut, ...] = ()
    num_deficient: int = 0
    num_explained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStar:
    """A star of the load at position `row`, and the share of its rate that it got."""

    row: int
    star: Star
    share: float

    @property
    def is_deficient(self) -> bool:
        return self.share < DEFICIENT


def best_rows(rows: Sequence[LoadSamples]) -> tuple[LoadSamples, ...]:
    """Return one measurement of each load, the fastest: what disturbs a measurement makes it slower."""
    best: dict[object, LoadSamples] = {}
    for row in rows:
        known = best.get(row.load.ways)
        if known is None or row.rate > known.rate:
            best[row.load.ways] = row
    return tuple(best.values())


def measured_stars(rows: Sequence[LoadSamples], alone: AloneRates) -> list[MeasuredStar]:
    """Return all stars of the loads.

    A node that never gets quite the rate that it had alone, not even in its best load, is measured by its best.
    """
    found = [
        MeasuredStar(row=number, star=star, share=sum(row.rates[way] for way in star.ways) / star.rate)
        for number, row in enumerate(rows)
        for star in stars_of(row.load.ways, alone)
    ]
    best: dict[tuple[int, int], float] = {}
    for one in found:
        for end in _ends(one, rows):
            best[end] = max(best.get(end, _LEAST_AT_BEST), min(one.share, 1.0))
    return [replace(one, share=one.share / min(best[end] for end in _ends(one, rows))) for one in found]


def _ends(one: MeasuredStar, rows: Sequence[LoadSamples]) -> set[tuple[int, int]]:
    ways = rows[one.row].load.ways
    return {(end, ways[way][end]) for way in one.star.ways for end in (0, 1)}


def find_cuts(rows: Sequence[LoadSamples], alone: AloneRates) -> Cuts:
    """Return the cuts that explain the deficient stars of the loads."""
    num_nodes = len(alone.out)
    stars = measured_stars(rows, alone)
    deficient = [one for one in stars if one.is_deficient]
    if not deficient:
        return Cuts()
    sets = sender_sets(num_nodes, _suspects(num_nodes, stars, rows) if num_nodes > MOST_NODES_IN_ALL_SETS else ())
    through = np.stack([_through(sets, _matrix(row, row.rates, num_nodes)) for row in rows], axis=1)
    rates = through.max(axis=1)
    explains = _crossings(sets, deficient, rows) & (through >= FULL * rates[:, None])[:, [d.row for d in deficient]]
    explains &= _is_limit(sets, rates, rows, alone)[:, None]
    chosen = _fewest(explains, _unevenness(through, explains, [one.row for one in deficient]))
    cuts = tuple(
        Cut(
            senders=tuple(int(node) for node in np.flatnonzero(sets[index])),
            rate=float(rates[index]),
            num_explained=int(explains[index].sum()),
        )
        for index in chosen
    )
    cuts = tuple(sorted(cuts, key=lambda cut: -cut.num_explained))
    explained = int(explains[chosen].any(axis=0).sum()) if chosen else 0
    return Cuts(cuts=cuts, num_deficient=len(deficient), num_explained=explained)


def sender_sets(num_nodes: int, suspects: Sequence[frozenset[int]]) -> _Bools:
    """Return the sets of senders to look at, a row each.

    No node is alone on its side of a cut, because that would be the node's own link. In a large cluster, these are the
    pairs, the `suspects`, and the other nodes of each.
    """
    if num_nodes <= MOST_NODES_IN_ALL_SETS:
        numbers = np.arange(2**num_nodes)
        every: _Bools = (numbers[:, None] >> np.arange(num_nodes) & 1).astype(bool)
        sizes = every.sum(axis=1)
        return np.asarray(every[(sizes >= 2) & (sizes <= num_nodes - 2)], dtype=np.bool_)
    groups = {frozenset(pair) for pair in itertools.combinations(range(num_nodes), 2)} | set(suspects)
    both = groups | {frozenset(range(num_nodes)) - group for group in groups}
    return np.array([[node in group for node in range(num_nodes)] for group in sorted(both, key=sorted)])


def _suspects(num_nodes: int, stars: Sequence[MeasuredStar], rows: Sequence[LoadSamples]) -> list[frozenset[int]]:
    """Return the nodes that sent, or received, in each slow load, and sets of nodes that slow each other."""
    found = []
    for end in (0, 1):
        on_side = np.zeros((len(rows), num_nodes), dtype=bool)
        for number, row in enumerate(rows):
            on_side[number, [way[end] for way in row.load.ways]] = True
        slow = {one.row for one in stars if one.is_deficient}
        found += [frozenset(np.flatnonzero(on_side[row]).tolist()) for row in sorted(slow)]
        share = np.ones((len(rows), num_nodes))
        for one in stars:
            share[one.row, [rows[one.row].load.ways[way][end] for way in one.star.ways]] = one.share
        found += _merged(_mutual(share, on_side))
    return [group for group in found if 2 <= len(group) <= num_nodes - 2]


def _mutual(share: _Floats, on_side: _Bools) -> _Floats:
    """Return by how much less each node gets while each other node is on its side of a load, on average of both."""
    there = on_side.astype(np.float64)
    gone = 1.0 - there
    own = share * there
    beside = (own.T @ there) / np.maximum(there.T @ there, 1.0)
    without = (own.T @ gone) / np.maximum(there.T @ gone, 1.0)
    less = without - beside
    return np.asarray((less + less.T) / 2, dtype=np.float64)


def _merged(likeness: _Floats) -> list[frozenset[int]]:
    """Return all sets that form if the two sets that are most alike on average are merged again and again."""
    groups = [frozenset([node]) for node in range(len(likeness))]
    found: list[frozenset[int]] = []
    while len(groups) > 2:
        pairs = itertools.combinations(groups, 2)
        first, second = max(pairs, key=lambda two: float(likeness[np.ix_(sorted(two[0]), sorted(two[1]))].mean()))
        groups = [group for group in groups if group not in (first, second)] + [first | second]
        found.append(first | second)
    return found


def _matrix(row: LoadSamples, values: Sequence[float], num_nodes: int) -> _Floats:
    """Return values of a load's ways as a matrix, senders by receivers."""
    matrix = np.zeros((num_nodes, num_nodes))
    for (source, destination), value in zip(row.load.ways, values, strict=True):
        matrix[source, destination] = value
    return matrix


def _through(sets: _Bools, matrix: _Floats) -> _Floats:
    """Return what crosses the cut of each set of senders."""
    inside = sets.astype(np.float64)
    return np.asarray(((inside @ matrix) * (1.0 - inside)).sum(axis=1), dtype=np.float64)


def _crossings(sets: _Bools, stars: Sequence[MeasuredStar], rows: Sequence[LoadSamples]) -> _Bools:
    """Return for each set and star whether a way of the star crosses the set's cut."""
    columns = []
    for one in stars:
        ways = [rows[one.row].load.ways[way] for way in one.star.ways]
        columns.append(np.any([sets[:, source] & ~sets[:, destination] for source, destination in ways], axis=0))
    return np.stack(columns, axis=1)


def _is_limit(sets: _Bools, rates: _Floats, rows: Sequence[LoadSamples], alone: AloneRates) -> _Bools:
    """Return for each set whether a load asked for clearly more than ever crossed its cut."""
    asked = np.zeros(len(sets))
    for row in rows:
        share = np.zeros(len(row.load.ways))
        for star in stars_of(row.load.ways, alone):
            share[list(star.ways)] = star.rate / len(star.ways)
        asked = np.maximum(asked, _through(sets, _matrix(row, list(share), len(alone.out))))
    return np.asarray(rates < FULL * asked, dtype=np.bool_)


def _unevenness(through: _Floats, explains: _Bools, row_of_star: Sequence[int]) -> _Floats:
    """Return how unequal the rates are with which each cut is full: the less, the more it is a link."""
    uses = np.zeros_like(through, dtype=bool)
    for column, row in enumerate(row_of_star):
        uses[:, row] |= explains[:, column]
    count = np.maximum(uses.sum(axis=1), 1)
    mean = (through * uses).sum(axis=1) / count
    spread = np.sqrt((((through - mean[:, None]) ** 2) * uses).sum(axis=1) / count)
    return np.asarray(spread / np.maximum(mean, 1e-9), dtype=np.float64)


def _fewest(explains: _Bools, unevenness: _Floats) -> list[int]:
    """Return the sets that explain the most stars with the fewest cuts: greedily, then improved one by one."""
    least = max(_LEAST_EXPLAINED, _LEAST_SHARE_EXPLAINED * explains.shape[1])
    # An even cut is preferred to an uneven one that explains as much.
    weight = np.maximum(1.0 - unevenness, 0.0)
    chosen: list[int] = []
    for _ in range(_MOST_CUTS):
        best = _best(explains, weight, chosen, least)
        if best is None:
            break
        chosen.append(best)
        chosen = _improved(explains, weight, chosen, least)
    return chosen


def _best(explains: _Bools, weight: _Floats, chosen: Sequence[int], least: float) -> int | None:
    """Return the set that explains most of the stars that the chosen sets do not explain, or None if it is too few."""
    open_stars = ~explains[list(chosen)].any(axis=0)
    gains = (explains & open_stars).sum(axis=1)
    best = int(np.argmax(gains * weight))
    return best if gains[best] >= least else None


def _improved(explains: _Bools, weight: _Floats, chosen: list[int], least: float) -> list[int]:
    """Return the chosen sets, each left out if the others suffice and exchanged if another one explains more."""
    for index in list(chosen):
        others = [one for one in chosen if one != index]
        better = _best(explains, weight, others, least)
        chosen = others if better is None else [*others, better]
    return chosen
