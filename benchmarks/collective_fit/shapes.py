"""The shapes of clusters on which `collective_fit.py` measures. Rates are in Mbit/s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autosync.specs.cluster import ClusterSpec, Rack
from benchmarks.clusters import MEGABIT, emulated

_LINK = 500.0


def _in_racks(cluster: ClusterSpec, *uplinks: tuple[int, float, float]) -> ClusterSpec:
    """Put nodes into racks, in their order: each rack has a number of nodes and its uplink's rates out and in."""
    homes = [f"rack-{number}" for number, (size, _, _) in enumerate(uplinks) for _ in range(size)]
    nodes = [replace(node, rack=home) for node, home in zip(cluster.nodes, homes, strict=True)]
    racks = [
        Rack(name=f"rack-{number}", uplink_out=out * MEGABIT, uplink_in=into * MEGABIT)
        for number, (_, out, into) in enumerate(uplinks)
    ]
    return replace(cluster, nodes=tuple(nodes), racks=tuple(racks))


def _one_way(cluster: ClusterSpec, incoming: Sequence[float]) -> ClusterSpec:
    """Return the cluster with other rates into its nodes."""
    nodes = [replace(node, bandwidth_in=rate * MEGABIT) for node, rate in zip(cluster.nodes, incoming, strict=True)]
    return replace(cluster, nodes=tuple(nodes))


SHAPES: Mapping[str, Callable[[], ClusterSpec]] = {
    "equal_hosts": lambda: emulated(*(_LINK,) * 4),
    "two_racks_even": lambda: _in_racks(emulated(*(_LINK,) * 4), (2, 250, 250), (2, 250, 250)),
    "two_racks_uneven": lambda: _in_racks(emulated(*(1000.0,) * 5), (3, 500, 500), (2, 500, 500)),
    "three_racks": lambda: _in_racks(emulated(*(_LINK,) * 6), *[(2, 250, 250)] * 3),
    "uplink_slow_one_way": lambda: _in_racks(emulated(*(_LINK,) * 5), (3, 250, 500), (2, 500, 500)),
    "one_slow_host": lambda: emulated(*(_LINK,) * 4, 200.0),
    "three_speeds": lambda: emulated(800.0, 800.0, 400.0, 400.0, 200.0),
    "asymmetric_links": lambda: _one_way(emulated(600.0, 600.0, 300.0, 300.0), (300.0, 300.0, 600.0, 600.0)),
    "two_ranks_a_host": lambda: emulated(*(_LINK,) * 3, devices=2),
    "two_ranks_a_host_in_racks": lambda: _in_racks(emulated(*(_LINK,) * 4, devices=2), *[(2, 250, 250)] * 2),
    "spare_servers": lambda: emulated(*(_LINK,) * 3, servers=(_LINK, _LINK)),
    "eight_hosts_in_four_racks": lambda: _in_racks(emulated(*(_LINK,) * 8), *[(2, 250, 250)] * 4),
}
"""Each call returns a cluster under a unique name."""
