"""The order in which halving-doubling takes ranks: nearest ranks exchange first, when the exchanged part is largest.

Halving-doubling pairs member i first with the member half of them away, for half of the data, and last with its
neighbour. So the order of members decides which links carry most. Here ranks on one node become first partners, then
ranks of one rack, then of one pod; what passes an uplink is the least that was left. The order follows from the
cluster's nodes and racks alone, never from rates. It is the order of members in the plan's groups, so that everything
that reads the plan pairs alike.

Members are divided into two halves again and again, each as near together as can be, until each has one member, or two
of which one folds onto the other. Where a member's number has bits that say into which halves it went, its position has
these bits in reverse.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import NO_RACK, racks_around

Path = tuple[str, ...]
"""The places of a rank, from the widest to its node."""


@functools.lru_cache(maxsize=256)
def nearest_first(members: tuple[int, ...], cluster: ClusterSpec) -> tuple[int, ...]:
    """Return the members of a group in the order in which halving-doubling pairs nearest ranks first.

    Their own order stays if it sends no more between pods, racks and nodes, as where all are equally near.
    """
    paths = {rank: _path(rank, cluster) for rank in members}
    return min((members, _paired(members, paths)), key=lambda order: _crossing([paths[rank] for rank in order]))


def _paired(members: Sequence[int], paths: Mapping[int, Path]) -> tuple[int, ...]:
    num_pairing = 1 << (len(members).bit_length() - 1)
    num_bits = num_pairing.bit_length() - 1
    found = list(members)
    for number, leaf in enumerate(_in_halves(list(members), paths, num_pairing)):
        position = _reversed_bits(number, num_bits)
        found[position] = leaf[0]
        for folded in leaf[1:]:
            found[num_pairing + position] = folded
    return tuple(found)


def _crossing(paths: Sequence[Path]) -> tuple[int, ...]:
    """Return how many chunks pass between the units of each level, in an all-reduce among members in this order."""
    count = len(paths)
    pairing = 1 << (count.bit_length() - 1)
    begin = [number * (count // pairing) + min(number, count % pairing) for number in range(pairing + 1)]
    totals = [0] * len(paths[0])
    exchanges = [
        (one, one ^ 1 << level, 1 << level) for one in range(pairing) for level in range(pairing.bit_length() - 1)
    ]
    sizes = [
        (one, other, sum([begin[place // far * far + far] - begin[place // far * far] for place in (one, other)]))
        for one, other, far in exchanges
    ]
    sizes += [(pairing + extra, extra, 2 * count) for extra in range(count - pairing)]
    for one, other, size in sizes:
        for level in range(len(totals)):
            if paths[one][: level + 1] != paths[other][: level + 1]:
                totals[level] += size
    return tuple(totals)


def _path(rank: int, cluster: ClusterSpec) -> Path:
    node = cluster.ranks[rank].node
    # Where a node is in no rack, or in none within its pod, it is a unit by itself.
    units = [f"node {node}" if rack == NO_RACK else f"rack {rack}" for rack in racks_around(cluster)[node]]
    return (*units, f"node {node}")


def _in_halves(ranks: list[int], paths: Mapping[int, Path], num_leaves: int) -> list[list[int]]:
    """Return leaves of one or two ranks each; those that are near are beside each other."""
    if num_leaves == 1:
        return [ranks]
    near = set(_together(ranks, paths, (len(ranks) + 1) // 2, level=0))
    left, right = [one for one in ranks if one in near], [one for one in ranks if one not in near]
    return [*_in_halves(left, paths, num_leaves // 2), *_in_halves(right, paths, num_leaves // 2)]


def _together(ranks: Sequence[int], paths: Mapping[int, Path], count: int, *, level: int) -> list[int]:
    """Return so many of these ranks: whole units as long as they fit, large ones first, then a part of one unit."""
    if level == len(paths[ranks[0]]):
        return list(ranks[:count])
    units: dict[str, list[int]] = {}
    for rank in ranks:
        units.setdefault(paths[rank][level], []).append(rank)
    found: list[int] = []
    broken: list[int] = []
    for unit in sorted(units.values(), key=len, reverse=True):
        if len(found) + len(unit) <= count:
            found += unit
        else:
            broken = broken or unit
    return [*found, *_together(broken, paths, count - len(found), level=level + 1)] if len(found) < count else found


def _reversed_bits(number: int, num_bits: int) -> int:
    return int(f"{number:0{num_bits}b}"[::-1], 2) if num_bits else 0
