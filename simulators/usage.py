"""What the transfers of a shape put on links, by classes of ranks and nodes (see `symmetry`).

A link is a class of nodes in one direction (out, in, within) or a rack in one. A transfer's groups with the same
members by class are one *instance*: they do the same at the same times. In a star nobody waits for anybody but the
root, so there is an instance for each class of the others. How much an instance puts on a link is told as a share of
the transfer's buffer, on one link of the class; and how many connections carry it there.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass

from autosync.plan.flows import flow
from autosync.plan.outline import outline
from autosync.plan.tables import Shape
from autosync.simulators.symmetry import Classes
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Of one link: the share of the buffer that passes, in how many connections."""

    link: int
    share: float
    num_connections: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Groups of a shape that do the same. `members` are classes of ranks, each once; `num_members` of one group.

    `uses` are links between nodes and within them, `num_rounds` how often somebody waits for somebody else, `added`
    the share of the buffer that a member adds up, and `moved` what all ranks of the cluster send of it together.
    `senders` are the members that receive nothing, `sent` the share of the buffer that each of them sends. `group` is
    one of the groups, and `num_shares` in how many chunks an outer split has cut its buffer.
    """

    group: tuple[int, ...]
    num_shares: int
    members: tuple[int, ...]
    senders: tuple[int, ...]
    sent: float
    num_members: int
    uses: tuple[Use, ...]
    num_rounds: int
    added: float
    moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One of the links that instances name: what kind it is, and of which node or rack one reads its rate."""

    kind: str
    position: int


@functools.lru_cache(maxsize=256)
def links_of(cluster: ClusterSpec, classes: Classes) -> tuple[Link, ...]:
    """Out, in and within for each class of nodes, then out and in for each rack."""
    nodes = [classes.of_node.index(number) for number in range(len(classes.num_nodes))]
    of_nodes = [Link(kind=kind, position=node) for kind in ("out", "in", "within") for node in nodes]
    of_racks = [
        Link(kind=kind, position=rack) for kind in ("rack_out", "rack_in") for rack in range(len(cluster.racks))
    ]
    return (*of_nodes, *of_racks)


@functools.lru_cache(maxsize=16384)
def instances_of(cluster: ClusterSpec, classes: Classes, shape: Shape) -> tuple[Instance, ...]:
    """The instances of a shape, in the order of their first groups."""
    if shape.collective is None:
        return _of_local_work(classes, shape)
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for group in shape.groups:
        if shape.algorithm == "star" and len(group) > 1:
            for part in _rays(classes, group):
                alike[classes.members(shape, part)].append(part)
        else:
            alike[classes.members(shape, group)].append(group)
    return tuple([_instance(cluster, classes, shape, groups) for groups in alike.values()])


def _rays(classes: Classes, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The root with the others of each class."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in group[1:]:
        found[classes.of_rank[rank]].append(rank)
    return [(group[0], *others) for others in found.values()]


def _of_local_work(classes: Classes, shape: Shape) -> tuple[Instance, ...]:
    """Each rank works for itself; of how many it has a share where work is sharded, its group tells."""
    found = {(classes.of_rank[rank], len(group)): None for group in shape.groups for rank in group}
    return tuple([_idle(group=(), members=(member,), num_members=size) for member, size in found])


def _instance(cluster: ClusterSpec, classes: Classes, shape: Shape, groups: list[tuple[int, ...]]) -> Instance:
    members = tuple(sorted({classes.of_rank[rank] for rank in groups[0]}))
    size = len(groups[0])
    assert shape.collective is not None
    assert shape.algorithm is not None
    if size == 1:
        return _idle(group=groups[0], members=members, num_members=size)
    moves = outline(shape.collective, shape.algorithm, size)
    outer = next((len(group) for group in shape.within if groups[0][0] in group), 1)
    # A gather's elements are one member's contribution; others' are the whole buffer, of which each has a chunk.
    terms = flow(shape.collective, shape.algorithm, size)
    whole = 1 if shape.collective in ("gather_v", "all_gather_v") else terms.num_chunks
    amounts = (terms.weight * (terms.last - terms.first) / (whole * outer)).tolist()
    shares: dict[int, float] = defaultdict(float)
    pairs: dict[int, set[tuple[int, int]]] = defaultdict(set)
    places = _Places(cluster, classes)
    for group in groups:
        for source, destination, amount in zip(terms.source.tolist(), terms.destination.tolist(), amounts, strict=True):
            for link, weight in places.between(group[source], group[destination]):
                shares[link] += amount * weight
                pairs[link].add((group[source], group[destination]))
    receivers = {classes.of_rank[group[member]] for member in moves.receivers for group in groups}
    sent = [0.0] * size
    for source, amount in zip(terms.source.tolist(), amounts, strict=True):
        sent[source] += amount
    return Instance(
        group=groups[0],
        num_shares=outer,
        members=members,
        senders=tuple([member for member in members if member not in receivers]),
        sent=max(sent),
        num_members=size,
        uses=tuple(
            [
                Use(link=link, share=share, num_connections=len(pairs[link]) * places.weight(link))
                for link, share in sorted(shares.items())
            ]
        ),
        num_rounds=moves.num_rounds,
        added=moves.most_added / (whole * outer),
        moved=sum(amounts) * len(groups),
    )


def _idle(*, group: tuple[int, ...], members: tuple[int, ...], num_members: int) -> Instance:
    """Where nothing travels."""
    return Instance(
        group=group,
        num_shares=1,
        members=members,
        senders=(),
        sent=0.0,
        num_members=num_members,
        uses=(),
        num_rounds=0,
        added=0.0,
        moved=0.0,
    )


class _Places:
    """Where ranks are, and which links lie between two of them, a class of nodes counting as one of its nodes."""

    def __init__(self, cluster: ClusterSpec, classes: Classes) -> None:
        self._node = [rank.node for rank in cluster.ranks]
        self._class = classes.of_node
        self._num = classes.num_nodes
        names = {rack.name: position for position, rack in enumerate(cluster.racks)}
        self._rack = [None if node.rack is None else names[node.rack] for node in cluster.nodes]
        self._num_racks = len(cluster.racks)

    def weight(self, link: int) -> float:
        """What one connection of a class of nodes is on the average for one of them."""
        kinds = len(self._num)
        return 1.0 / self._num[link % kinds] if link < 3 * kinds else 1.0

    def between(self, source: int, destination: int) -> list[tuple[int, float]]:
        """The links, each with its weight."""
        start, end, kinds = self._node[source], self._node[destination], len(self._num)
        if start == end:
            links = [2 * kinds + self._class[start]]
        else:
            links = [self._class[start], kinds + self._class[end]]
            racks = self._rack[start], self._rack[end]
            if racks[0] != racks[1]:
                first = 3 * kinds
                links += [first + racks[0]] if racks[0] is not None else []
                links += [first + self._num_racks + racks[1]] if racks[1] is not None else []
        return [(link, self.weight(link)) for link in links]
