"""Cheap trees over clusters whose racks stand in pods: the candidates of `fitting` there.

First comes the cheapest tree over nodes and pods, as if a pod had no racks (`cheapest_trees`). Then each pod's nodes
are arranged anew below the node through which the pod is left, by the same rule with racks in place of pods. This is
done only where it cannot make a circle: where all other nodes of the pod stay in it. The result is no proven optimum,
for the head of a pod is chosen without a look at its racks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autosync.strategy.shapes.cheapest_trees import CheapestTrees, TreePrices
from autosync.strategy.shapes.links import Flags, Floats, Integers
from autosync.strategy.shapes.trees import ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodPlaces:
    """The pod and the rack of each node, and which nodes only serve."""

    pod: Integers
    rack: Integers
    serves: Flags


class PodTrees:
    """Finds cheap trees to any root. `prices` are those of nodes and pods; `leave` and `enter` those of racks."""

    def __init__(self, prices: TreePrices, leave: Floats, enter: Floats, places: PodPlaces) -> None:
        self._over_pods = CheapestTrees(prices, places.pod, places.serves)
        self._places = places
        self._members = [np.flatnonzero(places.pod == pod) for pod in range(len(prices.leave))]
        self._inside = [self._trees_inside(members, prices, leave, enter) for members in self._members]
        self._known: dict[int, Integers] = {}

    def to(self, root: int) -> Integers:
        """Return the parent of each node in a cheap tree to a root."""
        parents = self._over_pods.to(root)
        for pod, members in enumerate(self._members):
            way_out = self._way_out(parents, pod, root)
            if way_out is not None:
                arranged = self._below(way_out, pod)
                own = arranged != members
                parents[members[own]] = arranged[own]
        return parents

    def _way_out(self, parents: Integers, pod: int, root: int) -> int | None:
        """Return the node through which all others of a pod reach the root; None if there are several, or only it."""
        members = self._members[pod]
        present = members[parents[members] != ABSENT]
        is_out = (present == root) | (self._places.pod[parents[present]] != pod)
        if len(present) < 3 or is_out.sum() != 1:
            return None
        way_out = int(present[is_out][0])
        arriving = np.flatnonzero((parents != ABSENT) & (self._places.pod != pod))
        met = parents[arriving]
        # Servers are used anew; one that nodes elsewhere send to must stay.
        stays = met[(self._places.pod[met] == pod) & self._places.serves[met]]
        return way_out if (stays == way_out).all() else None

    def _below(self, way_out: int, pod: int) -> Integers:
        """Return the parents of a pod's nodes below one of them, which is its own parent."""
        found = self._known.get(way_out)
        if found is None:
            members = self._members[pod]
            local = self._inside[pod].to(int(np.searchsorted(members, way_out)))
            found = self._known[way_out] = np.where(local == ABSENT, ABSENT, members[local])
        return found

    def _trees_inside(self, members: Integers, prices: TreePrices, leave: Floats, enter: Floats) -> CheapestTrees:
        racks, rack = np.unique(self._places.rack[members], return_inverse=True)
        inside = TreePrices(prices.send[members], prices.receive[members], leave[racks], enter[racks])
        return CheapestTrees(inside, rack, self._places.serves[members])
