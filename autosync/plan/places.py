"""The nodes and racks of ranks, and the links between ranks: nodes' interfaces, links within nodes, racks' uplinks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from autosync.plan.flows import Integers
from autosync.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The node of each rank and the rack of each node (-1: none).

    Links are numbered in this order: out of nodes, into nodes, within nodes, out of racks, into racks.
    """

    node_of_rank: Integers
    rack_of_node: Integers
    num_nodes: int
    num_racks: int

    @property
    def num_links(self) -> int:
        return 3 * self.num_nodes + 2 * self.num_racks

    def links(self, source: Integers, destination: Integers) -> tuple[Integers, Integers]:
        """Return the links that data passes between pairs of ranks, as two columns: position of the pair, and link."""
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
    """Return the places of a cluster's ranks."""
    rack_index = {rack.name: index for index, rack in enumerate(cluster.racks)}
    return Places(
        np.array([rank.node for rank in cluster.ranks]),
        np.array([-1 if node.rack is None else rack_index[node.rack] for node in cluster.nodes]),
        len(cluster.nodes),
        len(cluster.racks),
    )
