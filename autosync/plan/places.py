"""Where ranks are, and the links between them: each node's interface and inside, each rack's uplink."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from autosync.plan.flows import Integers
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where ranks are. Links are numbered: nodes' out, nodes' in, within nodes, racks' out, racks' in."""

    node_of_rank: Integers
    rack_of_node: Integers
    num_nodes: int
    num_racks: int

    @property
    def num_links(self) -> int:
        return 3 * self.num_nodes + 2 * self.num_racks

    def links(self, source: Integers, destination: Integers) -> tuple[Integers, Integers]:
        """The links between pairs of ranks, as pairs (position of the pair, link)."""
        start, end = self.node_of_rank[source], self.node_of_rank[destination]
        leaves = start != end
        start_rack, end_rack = self.rack_of_node[start], self.rack_of_node[end]
        crosses = start_rack != end_rack
        racks_out, racks_in = crosses & (start_rack >= 0), crosses & (end_rack >= 0)
        after_nodes = 3 * self.num_nodes
        found = (
            (leaves, start),
            (leaves, self.num_nodes + end),
            (~leaves, 2 * self.num_nodes + start),
            (racks_out, after_nodes + start_rack),
            (racks_in, after_nodes + self.num_racks + end_rack),
        )
        pairs = np.concatenate([np.flatnonzero(where) for where, _ in found])
        return pairs, np.concatenate([link[where] for where, link in found])


@functools.lru_cache(maxsize=64)
def places_of(cluster: ClusterSpec) -> Places:
    """The places of a cluster's ranks."""
    rack_index = {rack.name: index for index, rack in enumerate(cluster.racks)}
    return Places(
        np.array([rank.node for rank in cluster.ranks]),
        np.array([-1 if node.rack is None else rack_index[node.rack] for node in cluster.nodes]),
        len(cluster.nodes),
        len(cluster.racks),
    )
