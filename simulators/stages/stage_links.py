"""The links that sends and sums of gradients take: the way between two ranks, and the busiest link of some transfers.

Rates are those of the timeline: as probed, else as the cluster file says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from autosync.plan.expansion import chunk_bounds, expand, num_chunks
from autosync.plan.flows import flow
from autosync.plan.types import Transfer
from autosync.simulators.timeline.links import network_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.uplinks import crossed


class StageLinks:
    """The links of a cluster. They are numbered as in `NetworkLinks`: first its links, then its queues."""

    def __init__(self, cluster: ClusterSpec, costs: Costs) -> None:
        self._cluster = cluster
        self._network = network_of(cluster, costs)
        self._ways: dict[tuple[int, int], tuple[int, ...]] = {}
        self.rates: list[float] = [*self._network.link_rate.tolist(), *self._network.queue_rate.tolist()]
        bursts = [*self._network.link_burst.tolist(), *self._network.queue_burst.tolist()]
        # What the ranks of a node share inside it has no bucket, and is so fast that it holds no burst up.
        shared = {len(self._network.link_rate) + int(queue) for queue in self._network.bus if queue >= 0}
        self.bursts: list[float] = [math.inf if link in shared else burst for link, burst in enumerate(bursts)]

    def way(self, source: int, destination: int) -> tuple[int, ...]:
        """Return the links between two ranks. The first is the one that leaves the source."""
        found = self._ways.get((source, destination))
        if found is None:
            found = self._ways[source, destination] = self._new_way(source, destination)
        return found

    def _new_way(self, source: int, destination: int) -> tuple[int, ...]:
        network, num_nodes = self._network, len(self._cluster.nodes)
        start, end = int(network.node[source]), int(network.node[destination])
        first, queues, passed = num_nodes + source, list[int](), [start]
        if start != end:
            left, entered = crossed(self._cluster, start, end)
            into_racks = num_nodes + network.num_racks
            queues = [end, *(num_nodes + rack for rack in left), *(into_racks + rack for rack in entered)]
            # What the ranks of a node share inside it is also passed by data that leaves the node, but no rack.
            first, passed = start, [start, end] if network.rack[start] == network.rack[end] else []
        queues += [int(network.bus[node]) for node in passed if network.bus[node] >= 0]
        return (first, *(len(network.link_rate) + queue for queue in queues))

    def flow_limit(self, way: tuple[int, ...]) -> float:
        """Return the most bytes a second of one connection on this way."""
        return float(self._network.link_flow[way[0]])

    def seconds(self, transfers: Iterable[Transfer]) -> float:
        """Return how long the busiest link, or the busiest connection, carries the bytes of transfers."""
        loads, longest = self.loads(transfers)
        return max(longest, *loads)

    def loads(self, transfers: Iterable[Transfer]) -> tuple[list[float], float]:
        """Return how long each link carries the bytes of transfers, and how long the busiest connection does."""
        sent: dict[tuple[int, int], int] = defaultdict(int)
        for one in transfers:
            for ends, num_bytes in bytes_between(one).items():
                sent[ends] += num_bytes
        loads, longest = [0] * len(self.rates), 0.0
        for ends, num_bytes in sent.items():
            way = self.way(*ends)
            longest = max(longest, num_bytes / self.flow_limit(way))
            for link in way:
                loads[link] += num_bytes
        return [load / rate for load, rate in zip(loads, self.rates, strict=True)], longest


def bytes_between(transfer: Transfer) -> dict[tuple[int, int], int]:
    """Return the bytes that a transfer sends from one rank to another."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for group in transfer.groups:
        for ends, num_bytes in _bytes_of_group(transfer, group).items():
            sent[ends] += num_bytes
    return sent


def parts_of_sum(transfer: Transfer, group: tuple[int, ...]) -> list[dict[tuple[int, int], int]]:
    """Return the bytes that each rank of a group sends to another, in each of the parts that follow one another.

    By halving and doubling, rounds use different links, and each is a part. All else is one part: its bytes are taken
    to travel at the same time.
    """
    if transfer.algorithm != "halving_doubling":
        return [_bytes_of_group(transfer, group)]
    num_elements = _num_elements(transfer, group)
    bounds = chunk_bounds(num_elements, num_chunks(transfer.collective, len(group), transfer.algorithm))
    rounds: dict[int, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for move in expand(transfer.collective, transfer.algorithm, len(group)):
        num_bytes = (bounds[move.last] - bounds[move.first]) * transfer.item_bytes
        rounds[move.round][group[move.source], group[move.destination]] += num_bytes
    return [rounds[number] for number in sorted(rounds)]


def _bytes_of_group(transfer: Transfer, group: tuple[int, ...]) -> dict[tuple[int, int], int]:
    sent: dict[tuple[int, int], int] = defaultdict(int)
    if len(group) > 1:
        terms = flow(transfer.collective, transfer.algorithm, len(group))
        bounds = np.array(chunk_bounds(_num_elements(transfer, group), terms.num_chunks))
        counts = terms.num_elements(bounds).tolist()
        for source, destination, count in zip(terms.source.tolist(), terms.destination.tolist(), counts, strict=True):
            sent[group[source], group[destination]] += count * transfer.item_bytes
    return sent


def _num_elements(transfer: Transfer, group: tuple[int, ...]) -> int:
    """Return the elements that a group works on: its part, where there are further groups around it."""
    outer = next((others for others in transfer.within if group[0] in others), group[:1])
    place = outer.index(group[0])
    begin, end = chunk_bounds(transfer.num_elements, len(outer))[place : place + 2]
    return end - begin
