"""The load that the transfers of a shape put on links, by classes of ranks and nodes (see `rank_classes`).

A link is a class of nodes in one direction (out, in, within), what the ranks of such nodes share inside them, or a rack
in one direction. A transfer's groups with the same members by class are one *instance*: they do the same at the same
times. In a star, members wait only for the root, so there is one instance for each class of the other members. The load
of an instance is a share of the transfer's buffer, on one link of the class.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autosync.plan.flows import Integers, flow
from autosync.plan.outline import Outline, outline
from autosync.plan.places import Places, places_of
from autosync.plan.tables import Shape
from autosync.plan.types import Algorithm, Collective
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.shared.rank_classes import Classes
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The share of a transfer's buffer that passes one link."""

    link: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Groups of a shape that do the same. `members` are the classes of their ranks; a group has `num_members` ranks.

    `uses` are the loads on links between and within nodes, and `num_rounds` the number of rounds that wait for one
    another. As shares of the buffer: `added` is summed by one member, `moved` is sent by all ranks of the cluster
    together, `stays` is the part of it that goes to ranks of the same node, and `sent` is the most that one member
    sends. `group` is one of the groups, and `num_shares` the number of chunks into which an outer split has cut its
    buffer. `num_shards` is how many shards like a rank's make the whole of sharded local work.
    """

    group: tuple[int, ...]
    num_shares: int
    members: tuple[int, ...]
    sent: float
    num_members: int
    uses: tuple[Use, ...]
    num_rounds: int
    added: float
    moved: float
    stays: float
    num_shards: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLink:
    """A link of instances: its kind, and the node or rack whose rate it has."""

    kind: str
    position: int


@functools.lru_cache(maxsize=256)
def links_of(cluster: ClusterSpec, classes: Classes) -> tuple[ClusterLink, ...]:
    """Return out, in and within for each class of nodes, out and in for each rack, and what ranks share inside nodes.

    The last, `inside`, is only that of classes whose ranks share something.
    """
    nodes = [classes.of_node.index(number) for number in range(len(classes.num_nodes))]
    of_nodes = [ClusterLink(kind=kind, position=node) for kind in ("out", "in", "within") for node in nodes]
    of_racks = [
        ClusterLink(kind=kind, position=rack) for kind in ("rack_out", "rack_in") for rack in range(len(cluster.racks))
    ]
    shared = [
        ClusterLink(kind="inside", position=node) for node in nodes if cluster.nodes[node].intra_total is not None
    ]
    return (*of_nodes, *of_racks, *shared)


@functools.lru_cache(maxsize=16384)
def instances_of(cluster: ClusterSpec, classes: Classes, shape: Shape) -> tuple[Instance, ...]:
    """Return the instances of a shape, in the order of their first groups."""
    if shape.collective is None:
        return _of_local_work(classes, shape)
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for group in shape.groups:
        if shape.algorithm == "star" and len(group) > 1:
            for part in _rays(classes, group):
                alike[classes.members(shape, part)].append(part)
        else:
            alike[classes.members(shape, group)].append(group)
    found = [(groups, _sending(shape, groups[0])) for groups in alike.values()]
    uses = _uses(_roads(cluster, classes), found)
    return tuple([_instance(classes, *one, used) for one, used in zip(found, uses, strict=True)])


def _rays(classes: Classes, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return, for each class of the other members, the root and the members of that class."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in group[1:]:
        found[classes.of_rank[rank]].append(rank)
    return [(group[0], *others) for others in found.values()]


def _of_local_work(classes: Classes, shape: Shape) -> tuple[Instance, ...]:
    """Return the instances of local work. If work is sharded, `num_shards` tells each rank's part of it."""
    found = {
        (classes.of_rank[rank], len(group), _num_shards(shape, position, len(group))): None
        for group in shape.groups
        for position, rank in enumerate(group)
    }
    return tuple(
        [
            replace(_idle(group=(), members=(member,), num_members=size), num_shards=count)
            for member, size, count in found
        ]
    )


def _num_shards(shape: Shape, position: int, size: int) -> float:
    """Return how many shards like a member's make the whole; endless if it owns nothing."""
    if not shape.weights:
        return float(size)
    weight = shape.weights[position]
    return sum(shape.weights) / weight if weight else math.inf


class _Sending(NamedTuple):
    """The sends between the members of a group of some size, and other facts that all such groups share."""

    source: Integers
    destination: Integers
    share: Floats
    num_shares: int
    outline: Outline
    added: float
    sent: float


def _sending(shape: Shape, group: tuple[int, ...]) -> _Sending:
    assert shape.collective is not None
    assert shape.algorithm is not None
    outer = next((len(others) for others in shape.within if group[0] in others), 1)
    return _sending_of(shape.collective, shape.algorithm, len(group), outer)


@functools.lru_cache(maxsize=4096)
def _sending_of(collective: Collective, algorithm: Algorithm, size: int, outer: int) -> _Sending:
    # The elements of a gather are one member's contribution; those of others are the whole buffer, in chunks.
    terms, moves = flow(collective, algorithm, size), outline(collective, algorithm, size)
    whole = outer * (1 if collective in ("gather_v", "all_gather_v") else terms.num_chunks)
    share = terms.weight * (terms.last - terms.first) / whole
    sent = np.bincount(terms.source, weights=share, minlength=1)
    return _Sending(terms.source, terms.destination, share, outer, moves, moves.most_added / whole, float(sent.max()))


def _instance(classes: Classes, groups: list[tuple[int, ...]], sending: _Sending, uses: tuple[Use, ...]) -> Instance:
    members = tuple(sorted({classes.of_rank[rank] for rank in groups[0]}))
    size = len(groups[0])
    if size == 1:
        return _idle(group=groups[0], members=members, num_members=size)
    return Instance(
        group=groups[0],
        num_shares=sending.num_shares,
        members=members,
        sent=sending.sent,
        num_members=size,
        uses=uses,
        num_rounds=sending.outline.num_rounds,
        added=sending.added,
        moved=float(sending.share.sum()) * len(groups),
        stays=_staying(classes, uses),
    )


def _staying(classes: Classes, uses: Iterable[Use]) -> float:
    """Return the bytes within all nodes together.

    In the order of links (see `links_of`), the links within nodes are third.
    """
    num_classes = len(classes.num_nodes)
    within = [use for use in uses if use.link // num_classes == 2]
    return sum([use.share * classes.num_nodes[use.link % num_classes] for use in within])


class _Roads(NamedTuple):
    """The places of ranks, and the class link of each of the cluster's links.

    `inside` has the class link of what the ranks of each node share inside it (-1: nothing). `weight` is the share of a
    class link's load that one of its nodes has on average.
    """

    places: Places
    link: Integers
    inside: Integers
    weight: Floats

    def links(self, source: Integers, destination: Integers) -> tuple[Integers, Integers]:
        """Return the class links between pairs of ranks, as two columns: position of the pair, and link."""
        places = self.places
        pairs, links = places.links(source, destination)
        start, end = places.node_of_rank[source], places.node_of_rank[destination]
        # Data passes what ranks share inside its nodes, unless it leaves a rack.
        stays = places.rack_of_node[start] == places.rack_of_node[end]
        passed = [(stays, self.inside[start]), (stays & (start != end), self.inside[end])]
        some = [np.flatnonzero(passes & (link >= 0)) for passes, link in passed]
        more = [link[positions] for positions, (_, link) in zip(some, passed, strict=True)]
        return np.concatenate((pairs, *some)), np.concatenate((self.link[links], *more))


@functools.lru_cache(maxsize=64)
def _roads(cluster: ClusterSpec, classes: Classes) -> _Roads:
    places, of_node, num_classes = places_of(cluster), np.array(classes.of_node), len(classes.num_nodes)
    of_racks = np.arange(2 * places.num_racks)
    shared = [one for one in enumerate(links_of(cluster, classes)) if one[1].kind == "inside"]
    inside = {classes.of_node[link.position]: number for number, link in shared}
    sizes = np.array(classes.num_nodes)
    return _Roads(
        places,
        np.concatenate([*(kind * num_classes + of_node for kind in range(3)), 3 * num_classes + of_racks]),
        np.array([inside.get(number, -1) for number in classes.of_node], dtype=np.int64),
        np.concatenate([np.tile(1.0 / sizes, 3), np.ones(len(of_racks)), 1.0 / sizes[list(inside)]]),
    )


def _uses(roads: _Roads, found: Sequence[tuple[list[tuple[int, ...]], _Sending]]) -> list[tuple[Use, ...]]:
    """Return the loads of groups on links, for each of some instances."""
    ranks = [np.array(groups) for groups, _ in found]
    source = np.concatenate([some[:, one.source].ravel() for some, (_, one) in zip(ranks, found, strict=True)])
    destination = np.concatenate(
        [some[:, one.destination].ravel() for some, (_, one) in zip(ranks, found, strict=True)]
    )
    share = np.concatenate([np.tile(one.share, len(groups)) for groups, one in found])
    instance = np.repeat(np.arange(len(found)), [len(groups) * len(one.share) for groups, one in found])
    pairs, links = roads.links(source, destination)
    num_links = len(roads.weight)
    used, place = np.unique(instance[pairs] * num_links + links, return_inverse=True)
    shares = np.bincount(place, weights=share[pairs])
    weight = roads.weight[used % num_links]
    uses: list[list[Use]] = [[] for _ in found]
    for key, share_on_link in zip(used.tolist(), (shares * weight).tolist(), strict=True):
        number, link = divmod(key, num_links)
        uses[number].append(Use(link=link, share=share_on_link))
    return [tuple(some) for some in uses]


def _idle(*, group: tuple[int, ...], members: tuple[int, ...], num_members: int) -> Instance:
    """Return an instance that sends nothing."""
    return Instance(
        group=group,
        num_shares=1,
        members=members,
        sent=0.0,
        num_members=num_members,
        uses=(),
        num_rounds=0,
        added=0.0,
        moved=0.0,
        stays=0.0,
    )
