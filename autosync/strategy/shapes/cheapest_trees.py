"""The cheapest trees under prices of links: the candidates of `fitting`.

A price is what a link charges for the data of one share. In a reduction tree every worker node but the root sends once,
so only a few things cost more or less: which nodes receive, which uplinks the data passes, and whether a server takes
part, which must send on. So the cheapest tree is simple. The workers of a rack send to one node, its *head*: the
cheapest receiver there, or the root. Heads send to the head of the root's rack, or to another head that is cheaper and
sends on for all of them. A worker sends past its head if its head is dearer than the way to another rack's head.

A distribution tree is a reduction tree with all directions turned round.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from autosync.strategy.shapes.links import Flags, Floats, Integers
from autosync.strategy.shapes.trees import ABSENT


class TreePrices(NamedTuple):
    """The prices of sending and receiving at each node, and of leaving and entering each rack."""

    send: Floats
    receive: Floats
    leave: Floats
    enter: Floats


class TreesToRoots(Protocol):
    """Finds, under some prices, a cheap tree to any root."""

    def to(self, root: int) -> Integers:
        """Return the parent of each node in a cheap tree to a root."""
        ...


class CheapestTrees:
    """Finds, under some prices, the cheapest reduction tree to any root.

    `rack` has the rack of each node, and `serves` tells which nodes only serve.
    """

    def __init__(self, prices: TreePrices, rack: Integers, serves: Flags) -> None:
        self._prices, self._rack, self._serves = prices, rack, serves
        num_racks = len(prices.leave)
        self._num_workers: Integers = np.bincount(rack[~serves], minlength=num_racks)
        # What a node costs as the head of its rack. A worker does not send to itself; a server must send on.
        inner = np.maximum(self._num_workers[rack] - 1, 0)
        self._costs: Floats = np.where(
            serves, self._num_workers[rack] * prices.receive + prices.send, inner * prices.receive
        )
        # As a head of all racks, a node is worth its price alone.
        self._all_heads = [self._cheapest_by_rack(self._costs)]
        if serves.any():
            self._all_heads.append(self._cheapest_by_rack(prices.receive))

    def to(self, root: int) -> Integers:
        """Return the parent of each node in the cheapest tree to a root."""
        at_home = dict.fromkeys((root, self._other_head(root)))
        return min([self._through(heads, head, root) for heads in self._all_heads for head in at_home], key=self._cost)

    def _cheapest_by_rack(self, costs: Floats) -> Integers:
        """Return the cheapest node of each rack."""
        order = np.argsort(costs, kind="stable")
        _, places = np.unique(self._rack[order], return_index=True)
        found: Integers = order[places]
        return found

    def _cost(self, parents: Integers) -> float:
        prices, child = self._prices, np.flatnonzero((parents != np.arange(len(parents))) & (parents != ABSENT))
        parent = parents[child]
        start, end = self._rack[child], self._rack[parent]
        crossing = np.where(start == end, 0.0, prices.leave[start] + prices.enter[end])
        return float((prices.send[child] + prices.receive[parent] + crossing).sum())

    def _through(self, heads: Integers, head: int, root: int) -> Integers:
        """Return the cheapest tree to a root with these heads, but with `head` in the root's rack."""
        rack, home = self._rack, int(self._rack[root])
        heads = heads.copy()
        heads[home] = head
        # The cost of reaching the head of a rack from another one.
        arrival = self._prices.enter + self._prices.receive[heads]
        meeting = self._meeting(home, heads, arrival)
        parents = self._nearest(home, meeting, heads, arrival)[rack]
        parents[self._serves] = ABSENT
        parents[heads[self._num_workers > 0]] = heads[meeting]
        if heads[meeting] != heads[home]:
            parents[heads[meeting]] = heads[home]
        if heads[home] != root:
            parents[heads[home]] = root
        parents[root] = root
        return self._without_idle_servers(parents, root)

    def _other_head(self, root: int) -> int:
        """Return the node of the root's rack that is the cheapest head besides the root, or the root if it is alone."""
        others = np.flatnonzero((self._rack == self._rack[root]) & (np.arange(len(self._rack)) != root))
        return int(others[np.argmin(self._costs[others])]) if len(others) else root

    def _nearest(self, home: int, meeting: int, heads: Integers, arrival: Floats) -> Integers:
        """Return for each rack where its workers send: to its head, or past it to the cheapest head of another rack."""
        is_there = self._num_workers > 0
        is_there[[home, meeting]] = True
        reached = np.where(is_there, arrival, np.inf)
        order = np.argsort(reached, kind="stable")
        other = np.full(len(heads), order[0])
        other[order[0]] = order[1] if len(order) > 1 else order[0]
        is_past = self._prices.leave + reached[other] < self._prices.receive[heads]
        nearest: Integers = np.where(is_past & (other != np.arange(len(heads))), heads[other], heads)
        return nearest

    def _meeting(self, home: int, heads: Integers, arrival: Floats) -> int:
        """Return the rack whose head all other heads send to."""
        prices = self._prices
        has_workers = self._num_workers > 0
        num_away = int(has_workers.sum()) - int(has_workers[home])
        costs = (num_away - has_workers) * arrival + arrival[home]
        costs += np.where(has_workers, 0.0, prices.send[heads] + prices.leave)
        costs[home] = num_away * arrival[home]
        meeting = int(np.argmin(costs))
        return home if costs[meeting] >= costs[home] else meeting

    def _without_idle_servers(self, parents: Integers, root: int) -> Integers:
        """Leave out servers that nothing is sent to."""
        while self._serves.any():
            has_children = np.isin(np.arange(len(parents)), parents[parents != np.arange(len(parents))])
            idle = self._serves & (parents != ABSENT) & ~has_children
            idle[root] = False
            if not idle.any():
                break
            parents[idle] = ABSENT
        return parents
