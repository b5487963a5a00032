"""The shape `levels`: reduce within nodes, within racks and between racks, and send the result back the same way.

It follows from the cluster's racks alone, never from rates, so the same file means the same plan on every cluster with
these racks. Of each node and each rack one rank is the leader, and one rack's leader is the root. Leaders and roots
change from share to share, so that all interfaces and uplinks work all the time, each for an equal part of the data.
Nodes without a rack count as racks of one node.

The buffer is divided by fractions: rack j of k is the root's rack from j/k to (j+1)/k. Within each such range, the m
nodes of a rack lead it in turn, each for an equal part. With two racks each node leads once, for one part of the whole,
because a leader then has the same to send and to receive whether or not it is the root.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shapes.trees import Parents, TreeShape, TreeShare, simplified

MAX_UNITS = 4096
"""The finest division of a buffer. Racks whose sizes would need a finer one get parts that differ by one unit."""

Ranks = tuple[int, ...]


@functools.lru_cache(maxsize=256)
def levels(cluster: ClusterSpec) -> TreeShape:
    """Return the shape `levels` of a cluster with two workers or more."""
    racks = worker_racks(cluster)
    bounds = _in_units(_cuts(racks))
    shares = []
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        middle = Fraction(start + stop, 2 * bounds[-1])
        leaders = [_leader(middle, len(rack), len(racks)) for rack in racks]
        root_rack = math.floor(middle * len(racks))
        up = rank_tree(racks, leaders, root_rack, turn=number)
        shares.append(TreeShare(up=up, weight=stop - start))
    return TreeShape(shares=simplified(shares), name="levels")


@functools.lru_cache(maxsize=256)
def num_level_shares(cluster: ClusterSpec) -> int:
    """Return the number of shares of `levels`, which costs nothing to compute."""
    return len(_cuts(worker_racks(cluster))) - 1


def worker_racks(cluster: ClusterSpec) -> tuple[tuple[Ranks, ...], ...]:
    """Return the worker ranks by rack and node; a node without a rack is a rack by itself."""
    found: dict[tuple[str, str], list[Ranks]] = {}
    for group in cluster.worker_groups():
        node = cluster.nodes[cluster.ranks[group[0]].node]
        key = ("node", node.name) if node.rack is None else ("rack", node.rack)
        found.setdefault(key, []).append(group)
    return tuple(tuple(nodes) for nodes in found.values())


def rank_tree(racks: Sequence[Sequence[Ranks]], leaders: Sequence[int], root_rack: int, *, turn: int) -> Parents:
    """Return the tree in which ranks meet at their node, nodes at their rack's leader and racks at the root.

    `leaders` has the position of the leading node in each rack. In turn t, the rank at position t modulo the node's
    ranks speaks for its node.
    """
    parents: dict[int, int] = {}
    heads = [_speaker(rack[leader], turn) for rack, leader in zip(racks, leaders, strict=True)]
    for rack, head in zip(racks, heads, strict=True):
        for node in rack:
            speaker = _speaker(node, turn)
            parents.update(dict.fromkeys(node, speaker))
            parents[speaker] = head
        parents[head] = heads[root_rack]
    return tuple([parents[rank] for rank in range(len(parents))])


def _speaker(node: Ranks, turn: int) -> int:
    return node[turn % len(node)]


def _num_cycles(num_racks: int) -> int:
    """Return how often the nodes of a rack lead it in turn."""
    return num_racks if num_racks > 2 else 1


def _cuts(racks: Sequence[Sequence[Ranks]]) -> list[Fraction]:
    """Return the fractions of the buffer at which a leader or the root's rack changes, from 0 to 1."""
    num_racks, cycles = len(racks), _num_cycles(len(racks))
    found = {Fraction(number, num_racks) for number in range(num_racks + 1)}
    for size in {len(rack) for rack in racks}:
        found.update([Fraction(number, cycles * size) for number in range(cycles * size)])
    return sorted(found)


def _leader(place: Fraction, size: int, num_racks: int) -> int:
    """Return the position of the node that leads a rack of this size at a place in the buffer."""
    return math.floor(place * _num_cycles(num_racks) * size) % size


def _in_units(cuts: Sequence[Fraction]) -> list[int]:
    """Return cuts as whole numbers of equal units."""
    num_units = math.lcm(*[cut.denominator for cut in cuts])
    num_units = min(num_units, MAX_UNITS)
    return list(dict.fromkeys([round(cut * num_units) for cut in cuts]))
