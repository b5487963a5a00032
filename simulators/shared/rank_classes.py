"""Classes of ranks that do the same at the same times, so that one rank can represent its class.

On equal hosts, every rank of a ring waits for the same and sends the same. A plan on a thousand hosts then has a
handful of classes, and simulating one rank of each is enough. Classes are found by refinement. At first, a class has
all ranks with the same role on the same kind of node. A transfer splits a class if its ranks have different positions
in the transfer (a root, the levels of a tree) or meet ranks of different classes. When no transfer splits a class any
more, the ranks of each class behave the same.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from autosync.plan.tables import Shape
from autosync.plan.types import Algorithm, Collective
from autosync.specs.calibration import Estimate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.link_calibration import measured_node
from autosync.specs.uplinks import NO_RACK, nodes_behind, racks_around

ALIKE = 0.1
"""The share by which rates may differ and still count as equal."""

_AROUND: frozenset[Algorithm] = frozenset({"ring", "native"})
_ROOTED: frozenset[Collective] = frozenset({"reduce", "broadcast", "gather_v"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Classes of ranks and of nodes: the class of each rank and node, and the size of each class."""

    of_rank: tuple[int, ...]
    of_node: tuple[int, ...]
    num_ranks: tuple[int, ...]
    num_nodes: tuple[int, ...]

    def members(self, shape: Shape, group: tuple[int, ...]) -> tuple[int, ...]:
        """Return the key that distinguishes groups of a shape: their members' classes, in order if it matters."""
        found = [self.of_rank[rank] for rank in group]
        return tuple(sorted(found)) if _is_symmetric(shape) else tuple(found)


def classes_of(cluster: ClusterSpec, shapes: Iterable[Shape]) -> Classes:
    """Return the coarsest classes that these shapes do not split."""
    workers = tuple(range(cluster.num_workers))
    return _refined(cluster, frozenset([_telling(one) for one in shapes if not _tells_nothing(one, workers)]))


def _tells_nothing(shape: Shape, workers: tuple[int, ...]) -> bool:
    """Return whether exactly the workers take part, and all do the same."""
    return shape.groups == (workers,) and _is_symmetric(shape)


def _telling(shape: Shape) -> Shape:
    """Return one shape for all that split classes in the same way, so that fewer sets of shapes are refined."""
    if _is_symmetric(shape):
        return Shape(None, None, tuple(sorted(shape.groups)))
    return Shape("reduce", shape.algorithm, shape.groups)


@functools.lru_cache(maxsize=4096)
def _refined(cluster: ClusterSpec, shapes: frozenset[Shape]) -> Classes:
    ranks = cluster.ranks
    nodes = [_kind_of_node(cluster, position) for position in range(len(cluster.nodes))]
    ordered = sorted(shapes, key=str)
    of_rank = _numbered([(rank.role, nodes[rank.node]) for rank in ranks])
    while True:
        on_nodes = _ranks_of(cluster, of_rank)
        of_node = _numbered([(kind, on_nodes[node]) for node, kind in enumerate(nodes)])
        meetings: dict[tuple[int, ...], int] = {}
        seen: list[list[Hashable]] = [[of_rank[rank.index], of_node[rank.node]] for rank in ranks]
        for number, shape in enumerate(ordered):
            for group in shape.groups:
                classes = [of_rank[rank] for rank in group]
                met = tuple(sorted(classes)) if _is_symmetric(shape) else tuple(classes)
                # Numbers stand for meetings, because comparing a thousand ranks' meetings with a thousand others is
                # slow.
                meeting = meetings.setdefault(met, len(meetings))
                for place, rank in enumerate(group):
                    seen[rank].append((number, _place(shape, place), meeting))
        finer = _numbered([tuple(one) for one in seen])
        if max(finer) == max(of_rank):
            return Classes(of_rank=of_rank, of_node=of_node, num_ranks=_counted(of_rank), num_nodes=_counted(of_node))
        of_rank = finer


def apart(cluster: ClusterSpec) -> Classes:
    """Return classes with one rank or node each."""
    of_rank, of_node = tuple(range(len(cluster.ranks))), tuple(range(len(cluster.nodes)))
    return Classes(of_rank=of_rank, of_node=of_node, num_ranks=_counted(of_rank), num_nodes=_counted(of_node))


def _is_symmetric(shape: Shape) -> bool:
    """Return whether all members of a group do the same, whatever their position.

    In halving and doubling, they meet others in other rounds, but each sends and adds as much as any other.
    """
    if shape.collective is None:
        return True
    if shape.algorithm == "halving_doubling":
        return all((len(group) & (len(group) - 1)) == 0 for group in shape.groups)
    return shape.algorithm in _AROUND and shape.collective not in _ROOTED


def _place(shape: Shape, place: int) -> int:
    if _is_symmetric(shape):
        return 0
    return min(place, 1) if shape.algorithm == "star" else place


def _kind_of_node(cluster: ClusterSpec, position: int) -> Hashable:
    node = cluster.nodes[position]
    around = [rack for rack in racks_around(cluster)[position] if rack != NO_RACK]
    uplinks = tuple([_kind_of_rack(cluster, rack) for rack in around])
    # A host that a probe found slow is another kind of host, whatever its file claims.
    found = measured_node(cluster, node.name)
    measured = () if found is None else (found.rate_out, found.rate_in, found.rate_within)
    probed = tuple([_rough(one) for one in measured])
    rates = (node.bandwidth_out, node.bandwidth_in, node.intra_bandwidth, node.intra_total, node.nics)
    return (node.role, node.devices, node.compute, *rates, uplinks, probed)


def _rough(rate: Estimate | None) -> float | None:
    """Return a rate rounded to some percent, because no two links are probed exactly alike."""
    return None if rate is None or rate.value <= 0 else round(math.log(rate.value) / ALIKE)


def _kind_of_rack(cluster: ClusterSpec, position: int) -> Hashable:
    rack = cluster.racks[position]
    return (rack.uplink_out, rack.uplink_in, len(nodes_behind(cluster)[position]))


def _ranks_of(cluster: ClusterSpec, of_rank: tuple[int, ...]) -> Mapping[int, tuple[int, ...]]:
    found: dict[int, list[int]] = defaultdict(list)
    for rank in cluster.ranks:
        found[rank.node].append(of_rank[rank.index])
    return {node: tuple(sorted(classes)) for node, classes in found.items()}


def _numbered(kinds: Iterable[Hashable]) -> tuple[int, ...]:
    """Return a number for each kind, equal for equal kinds, in the order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple([numbers.setdefault(kind, len(numbers)) for kind in kinds])


def _counted(classes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([classes.count(number) for number in range(max(classes) + 1)])
