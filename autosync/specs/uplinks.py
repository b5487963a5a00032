"""What the uplinks of racks separate: the racks around each node, and which of them data passes, and how fast.

A rack may stand in another one, a pod; a pod stands in none. So a node has up to two racks around it, and data that
leaves its pod passes both uplinks.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping

from autosync.specs.cluster import ClusterSpec

NO_RACK = -1
Around = tuple[int, int]
"""The positions of the outermost rack around a node and of the rack within that one; `NO_RACK` where there is none."""


@functools.lru_cache(maxsize=256)
def racks_around(cluster: ClusterSpec) -> tuple[Around, ...]:
    """Return the racks around each node."""
    by_name = _by_name(cluster)
    return tuple([_around(cluster, by_name, node.rack) for node in cluster.nodes])


@functools.lru_cache(maxsize=256)
def nodes_behind(cluster: ClusterSpec) -> tuple[tuple[int, ...], ...]:
    """Return for each rack the nodes behind its uplink, also those in racks within it."""
    around = racks_around(cluster)
    return tuple([tuple([n for n, racks in enumerate(around) if rack in racks]) for rack in range(len(cluster.racks))])


def outermost_racks(cluster: ClusterSpec) -> tuple[int, ...]:
    """Return the outermost rack around each node."""
    return tuple([outer for outer, _ in racks_around(cluster)])


def innermost_racks(cluster: ClusterSpec) -> tuple[int, ...]:
    """Return the innermost rack around each node; a node that stands in a pod, but in no rack of it, has none."""
    pods = {rack.rack for rack in cluster.racks}
    by_name = _by_name(cluster)
    return tuple([NO_RACK if node.rack is None or node.rack in pods else by_name[node.rack] for node in cluster.nodes])


def crossed(cluster: ClusterSpec, source: int, destination: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the racks that data leaves and those that it enters on its way between two nodes."""
    start, end = racks_around(cluster)[source], racks_around(cluster)[destination]
    left = tuple([rack for rack in start if rack not in (NO_RACK, *end)])
    return left, tuple([rack for rack in end if rack not in (NO_RACK, *start)])


def ends_of_uplink(cluster: ClusterSpec, rack: int) -> tuple[Around, Around]:
    """Return the racks around the lower end of a rack's uplink, and those around its upper end."""
    lower = _around(cluster, _by_name(cluster), cluster.racks[rack].name)
    return lower, (NO_RACK if lower[0] == rack else lower[0], NO_RACK)


def reach(cluster: ClusterSpec, place: Around, nodes: Iterable[int], *, to_nodes: bool) -> float:
    """Return the bytes per second that some nodes can together receive from a place, or send to it.

    `place` are the racks around it. By the cluster spec, their links and all uplinks on the way limit it.
    """
    around, (outer, inner) = racks_around(cluster), place
    rates: dict[Around, float] = defaultdict(float)
    for index in nodes:
        node = cluster.nodes[index]
        rates[around[index]] += node.bandwidth_in if to_nodes else node.bandwidth_out

    def through(rack: int, rate: float, *, out: bool) -> float:
        if rack == NO_RACK:
            return rate
        return min(rate, cluster.racks[rack].uplink_out if out else cluster.racks[rack].uplink_in)

    near, far = 0.0, dict[int, float]()
    for (its_outer, its_inner), rate in rates.items():
        passing = through(its_inner, rate, out=not to_nodes)
        if its_outer != outer:
            far[its_outer] = far.get(its_outer, 0.0) + passing
        elif its_inner != inner:
            near += passing
    beyond = sum(through(rack, rate, out=not to_nodes) for rack, rate in far.items())
    apart = through(inner, near + through(outer, beyond, out=to_nodes), out=to_nodes)
    return rates[place] + apart


def _by_name(cluster: ClusterSpec) -> Mapping[str, int]:
    return {rack.name: position for position, rack in enumerate(cluster.racks)}


def _around(cluster: ClusterSpec, by_name: Mapping[str, int], name: str | None) -> Around:
    if name is None:
        return NO_RACK, NO_RACK
    inner = by_name[name]
    pod = cluster.racks[inner].rack
    return (inner, NO_RACK) if pod is None else (by_name[pod], inner)
