"""The rates of the links that trees go over: of each node's interface and of each rack's uplink."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from autosync.specs.calibration import Estimate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.link_calibration import measured_node, measured_racks
from autosync.specs.uplinks import NO_RACK, racks_around
from autosync.strategy.shapes.levels import Ranks, worker_racks
from autosync.strategy.shapes.trees import ABSENT

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_EQUAL = 0.1
"""The share by which rates may differ and still count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeLinks:
    """Links by direction, in bytes per second.

    Nodes are numbered rack by rack as `levels.worker_racks` lists them, then come nodes that only serve. `ranks` has
    the ranks of each node, `rack` the outermost rack around it and `inner` the rack within that one. A node without a
    rack is a rack by itself, with an endless uplink, and so is one that stands in a pod, but in no rack. Without pods
    there are no rates of inner racks.
    """

    ranks: tuple[Ranks, ...]
    rack: Integers
    inner: Integers
    serves: Flags
    node_out: Floats
    node_in: Floats
    rack_out: Floats
    rack_in: Floats
    inner_out: Floats
    inner_in: Floats

    @property
    def num_nodes(self) -> int:
        return len(self.ranks)

    @property
    def num_racks(self) -> int:
        return len(self.rack_out)

    @property
    def has_pods(self) -> bool:
        """Whether racks stand in pods."""
        return len(self.inner_out) > 0

    @property
    def by_kind(self) -> tuple[Floats, ...]:
        """All rates: out of nodes, into nodes, out of outermost racks, into them, and the same of inner racks."""
        return (self.node_out, self.node_in, self.rack_out, self.rack_in, self.inner_out, self.inner_in)

    @property
    def rates(self) -> Floats:
        """All rates in one array."""
        return np.concatenate(self.by_kind)

    def loads(self, up: Integers, down: Integers) -> Floats:
        """Return how often the data of one share passes each link, in the order of `rates`.

        `up` and `down` are the parents of nodes in both trees.
        """
        below, above = _edges(up), _edges(down)
        _, passed = self.crossings(np.concatenate((below, down[above])), np.concatenate((up[below], above)))
        return np.bincount(passed, minlength=len(self.rates)).astype(np.float64)

    def crossings(self, source: Integers, destination: Integers) -> tuple[Integers, Integers]:
        """Return which messages between these nodes pass which links: a message and a link for each time.

        Messages are counted in the given order, links in that of `rates`.
        """
        each = np.arange(len(source))
        messages, passed = [each, each], [source, self.num_nodes + destination]
        first = 2 * self.num_nodes
        for unit, count in ((self.rack, self.num_racks), (self.inner, len(self.inner_out))):
            start, end = unit[source], unit[destination]
            crosses = np.flatnonzero(start != end)
            messages += [crosses, crosses]
            passed += [first + start[crosses], first + count + end[crosses]]
            first += 2 * count
        return np.concatenate(messages), np.concatenate(passed)


def without_servers(links: TreeLinks) -> TreeLinks:
    """Return the links of workers alone; racks without workers are left out."""
    workers = np.flatnonzero(~links.serves)
    racks, rack = np.unique(links.rack[workers], return_inverse=True)
    inners, inner = np.unique(links.inner[workers], return_inverse=True)
    if not links.has_pods:
        inners = inners[:0]
    return TreeLinks(
        ranks=tuple([links.ranks[node] for node in workers.tolist()]),
        rack=rack,
        inner=inner,
        serves=links.serves[workers],
        node_out=links.node_out[workers],
        node_in=links.node_in[workers],
        rack_out=links.rack_out[racks],
        rack_in=links.rack_in[racks],
        inner_out=links.inner_out[inners],
        inner_in=links.inner_in[inners],
    )


def trees_may_gain(cluster: ClusterSpec, *, takes_servers: bool) -> bool:
    """Whether fitted trees may be faster than a ring.

    They may where nodes have racks, several ranks (which speak for their node in turn), or interfaces of different
    rates, and beside servers, whose links a ring leaves idle, if `takes_servers`. Rates that differ by less than a
    probe may err count as equal.
    """
    links = tree_links(cluster)
    workers = ~links.serves
    if workers.sum() < 2:
        return False
    if cluster.racks or cluster.num_workers > workers.sum() or (takes_servers and links.serves.any()):
        return True
    return any(rates.max() > (1 + _EQUAL) * rates.min() for rates in (links.node_out[workers], links.node_in[workers]))


def _edges(parents: Integers) -> Integers:
    """Return the nodes that have another node as their parent."""
    return np.flatnonzero((parents != np.arange(len(parents))) & (parents != ABSENT))


@functools.lru_cache(maxsize=64)
def tree_links(cluster: ClusterSpec) -> TreeLinks:
    """Return the links of a cluster's nodes: as probed, else as its file claims."""
    all_ranks, around = cluster.ranks, racks_around(cluster)
    servers = tuple([(rank.index,) for rank in all_ranks if rank.role == "server"])
    ranks = (*[node for rack in worker_racks(cluster) for node in rack], *servers)
    places = [all_ranks[group[0]].node for group in ranks]
    outer, inner = zip(*[around[place] for place in places], strict=True)
    rack, (rack_out, rack_in) = _units(cluster, outer)
    inner_rack, (inner_out, inner_in) = np.zeros(len(places), dtype=np.int64), np.zeros((2, 0))
    if any(rack != NO_RACK for rack in inner):
        inner_rack, (inner_out, inner_in) = _units(cluster, inner)
    node_out, node_in = np.array([node_rates(cluster, place) for place in places]).T
    return TreeLinks(
        ranks=ranks,
        rack=rack,
        inner=inner_rack,
        serves=np.arange(len(ranks)) >= len(ranks) - len(servers),
        node_out=node_out,
        node_in=node_in,
        rack_out=rack_out,
        rack_in=rack_in,
        inner_out=inner_out,
        inner_in=inner_in,
    )


def _units(cluster: ClusterSpec, racks: Sequence[int]) -> tuple[Integers, Floats]:
    """Number the racks of nodes by first appearance; return the number of each node's, and the rates of all uplinks.

    Nodes without one are units by themselves.
    """
    numbers: dict[tuple[str, int], int] = {}
    keys = [("node", node) if rack == NO_RACK else ("rack", rack) for node, rack in enumerate(racks)]
    found = [numbers.setdefault(key, len(numbers)) for key in keys]
    rates = [uplink_rates(cluster, rack) if kind == "rack" else (math.inf, math.inf) for kind, rack in numbers]
    return np.array(found), np.array(rates).T


def node_rates(cluster: ClusterSpec, position: int) -> tuple[float, float]:
    """Return the rates out of a node and into it: as probed, else as the file claims."""
    node = cluster.nodes[position]
    found = measured_node(cluster, node.name)
    probed = (None, None) if found is None else (found.rate_out, found.rate_in)
    return _rate(node.bandwidth_out, probed[0]), _rate(node.bandwidth_in, probed[1])


def alike_node_rates(cluster: ClusterSpec) -> list[tuple[float, float]]:
    """Return the rates out of each node and into it. Of probed ones, those that differ little count as equal.

    Then they are their median: no two links are probed exactly alike.
    """
    rates = [node_rates(cluster, position) for position in range(len(cluster.nodes))]
    if cluster.calibration is None:
        return rates
    out, into = [_levelled(one) for one in zip(*rates, strict=True)]
    return list(zip(out, into, strict=True))


def _levelled(rates: Sequence[float]) -> list[float]:
    found, order = list(rates), sorted(range(len(rates)), key=lambda place: rates[place])
    while order:
        count = sum(rates[place] <= (1 + _EQUAL) * rates[order[0]] for place in order)
        alike, order = order[:count], order[count:]
        middle = median(rates[place] for place in alike)
        for place in alike:
            found[place] = middle
    return found


def uplink_rates(cluster: ClusterSpec, position: int) -> tuple[float, float]:
    """Return the rates out of a rack and into it: as probed, else as the file claims."""
    rack = cluster.racks[position]
    found = measured_racks(cluster).get(rack.name)
    probed = (None, None) if found is None else (found.rate_out, found.rate_in)
    return _rate(rack.uplink_out, probed[0]), _rate(rack.uplink_in, probed[1])


def _rate(claimed: float, probed: Estimate | None) -> float:
    return probed.value if probed is not None and probed.value > 0 else claimed
