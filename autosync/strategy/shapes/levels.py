"""The shape `levels`: reduce within nodes, racks and pods and between them, and send the result back the same way.

It follows from the cluster's racks alone, never from rates, so the same file means the same plan on every cluster with
these racks. Of each node, rack and pod one rank is the leader, and one pod's leader is the root. Leaders and roots
change from share to share, so that all interfaces and uplinks work all the time, each for an equal part of the data.
A rack outside pods is a pod by itself, and so is a node without a rack.

The buffer is divided by fractions: pod j of k is the root's pod from j/k to (j+1)/k. Within each such range, the racks
of a pod lead it in turn, each for an equal part, and while a rack leads, its nodes lead the rack in turn. With two pods
each leads once, for one part of the whole, because a leader then has the same to send and to receive whether or not it
is the root.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import NO_RACK, racks_around
from autosync.strategy.shapes.trees import Parents, TreeShape, TreeShare, simplified

MAX_UNITS = 4096
"""The finest division of a buffer. Racks whose sizes would need a finer one get parts that differ by one unit."""

Ranks = tuple[int, ...]
RackRanks = tuple[Ranks, ...]
PodRanks = tuple[RackRanks, ...]


@functools.lru_cache(maxsize=256)
def levels(cluster: ClusterSpec) -> TreeShape:
    """Return the shape `levels` of a cluster with two workers or more."""
    pods = worker_pods(cluster)
    bounds = _in_units(_cuts(pods))
    shares = []
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        middle = Fraction(start + stop, 2 * bounds[-1])
        shares.append(TreeShare(up=_rank_tree(pods, middle, turn=number), weight=stop - start))
    return TreeShape(shares=simplified(shares), name="levels")


@functools.lru_cache(maxsize=256)
def num_level_shares(cluster: ClusterSpec) -> int:
    """Return the number of shares of `levels`, which costs nothing to compute."""
    return len(_cuts(worker_pods(cluster))) - 1


def worker_racks(cluster: ClusterSpec) -> tuple[RackRanks, ...]:
    """Return the worker ranks by rack and node; a node without a rack is a rack by itself."""
    return tuple([rack for pod in worker_pods(cluster) for rack in pod])


@functools.lru_cache(maxsize=256)
def worker_pods(cluster: ClusterSpec) -> tuple[PodRanks, ...]:
    """Return the worker ranks by pod, rack and node.

    A rack outside pods is a pod of one rack. A node that stands in a pod, but in no rack, is a rack by itself.
    """
    around, ranks = racks_around(cluster), cluster.ranks
    found: dict[tuple[str, int], list[tuple[int, Ranks]]] = {}
    for group in cluster.worker_groups():
        node = ranks[group[0]].node
        outer, inner = around[node]
        key = ("node", node) if outer == NO_RACK else ("rack", outer)
        found.setdefault(key, []).append((inner, group))
    return tuple([_by_rack(nodes) for nodes in found.values()])


def _by_rack(nodes: Sequence[tuple[int, Ranks]]) -> PodRanks:
    """Return the nodes of a pod by rack; each comes with its rack within the pod."""
    if all(inner == NO_RACK for inner, _ in nodes):
        return (tuple([group for _, group in nodes]),)
    racks: dict[int, list[Ranks]] = {}
    for number, (inner, group) in enumerate(nodes):
        racks.setdefault(inner if inner != NO_RACK else -2 - number, []).append(group)
    return tuple(map(tuple, racks.values()))


def _rank_tree(pods: Sequence[PodRanks], place: Fraction, *, turn: int) -> Parents:
    """Return the tree for a place in the buffer: ranks meet at their node, nodes at their rack's leader, and so on.

    In turn t, the rank at position t modulo the node's ranks speaks for its node.
    """
    parents: dict[int, int] = {}
    pod_heads = []
    for pod in pods:
        rack_heads = []
        for rack in pod:
            speakers = [node[turn % len(node)] for node in rack]
            for node, speaker in zip(rack, speakers, strict=True):
                parents.update(dict.fromkeys(node, speaker))
            rack_heads.append(_joined(parents, speakers, _leader(place, len(rack), _num_cycles(len(pods)) * len(pod))))
        pod_heads.append(_joined(parents, rack_heads, _leader(place, len(pod), _num_cycles(len(pods)))))
    _joined(parents, pod_heads, math.floor(place * len(pods)))
    return tuple([parents[rank] for rank in range(len(parents))])


def _joined(parents: dict[int, int], heads: Sequence[int], position: int) -> int:
    """Let all heads send to the one at a position, and return that one."""
    parents.update(dict.fromkeys(heads, heads[position]))
    return heads[position]


def _num_cycles(num_pods: int) -> int:
    """Return how often the racks of a pod lead it in turn."""
    return num_pods if num_pods > 2 else 1


def _cuts(pods: Sequence[PodRanks]) -> list[Fraction]:
    """Return the fractions of the buffer at which a leader or the root's pod changes, from 0 to 1."""
    num_pods, cycles = len(pods), _num_cycles(len(pods))
    counts = {num_pods}
    for pod in pods:
        counts.add(cycles * len(pod))
        counts.update([cycles * len(pod) * len(rack) for rack in pod])
    return sorted({Fraction(number, count) for count in counts for number in range(count)} | {Fraction(1)})


def _leader(place: Fraction, size: int, num_cycles: int) -> int:
    """Return the position of the member that leads a unit of this size at a place in the buffer."""
    return math.floor(place * num_cycles * size) % size


def _in_units(cuts: Sequence[Fraction]) -> list[int]:
    """Return cuts as whole numbers of equal units."""
    num_units = math.lcm(*[cut.denominator for cut in cuts])
    num_units = min(num_units, MAX_UNITS)
    return list(dict.fromkeys([round(cut * num_units) for cut in cuts]))
