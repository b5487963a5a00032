"""The nodes and racks of ranks, and the links between ranks: nodes' interfaces, links within nodes, racks' uplinks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from autosync.plan.flows import Integers
from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import racks_around


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The node of each rank, the outermost rack around each node, and the rack within that one (-1: none).

    Links are numbered in this order: out of nodes, into nodes, within nodes, out of racks, into racks.
    """

    node_of_rank: Integers
    rack_of_node: Integers
    inner_rack_of_node: Integers
    num_nodes: int
    num_racks: int

    @property
    def num_links(self) -> int:
        return 3 * self.num_nodes + 2 * self.num_racks

    def links(self, source: Integers, destination: Integers) -> tuple[Integers, Integers]:
        """Return the links that data passes between pairs of ranks, as two columns: position of the pair, and link."""
        start, end = self.node_of_rank[source], self.node_of_rank[destination]
        leaves = start != end
        found = [(leaves, start), (leaves, self.num_nodes + end), (~leaves, 2 * self.num_nodes + start)]
        after_nodes = 3 * self.num_nodes
        # Inner racks have positions of their own, so nodes of two pods are in two inner racks as well, if in any.
        for rack_of_node in (self.rack_of_node, self.inner_rack_of_node):
            start_rack, end_rack = rack_of_node[start], rack_of_node[end]
            crosses = start_rack != end_rack
            found += [
                (crosses & (start_rack >= 0), after_nodes + start_rack),
                (crosses & (end_rack >= 0), after_nodes + self.num_racks + end_rack),
            ]
        pairs = np.concatenate([np.flatnonzero(where) for where, _ in found])
        return pairs, np.concatenate([link[where] for where, link in found])


@functools.lru_cache(maxsize=64)
def places_of(cluster: ClusterSpec) -> Places:
    """Return the places of a cluster's ranks."""
    racks = np.array(racks_around(cluster))
    return Places(
        np.array([rank.node for rank in cluster.ranks]),
        racks[:, 0],
        racks[:, 1],
        len(cluster.nodes),
        len(cluster.racks),
    )
