"""Whether the bytes that the reference sends over each link are those of the closed form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from autosync.plan.reference.moving import SentElements
from autosync.plan.reference.workload import Array
from autosync.plan.traffic import transfer_traffic
from autosync.plan.types import Plan, Transfer
from autosync.specs.cluster import ClusterSpec


class BrokenError(Exception):
    """A property that does not hold."""


def hold(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def check_bytes(plan: Plan, cluster: ClusterSpec, sent: Sequence[SentElements]) -> Iterator[str]:
    """Transfer by transfer, what crossed each link against the closed form with the sizes of the contributions."""
    occurrences: dict[tuple[int, int], list[SentElements]] = defaultdict(list)
    for one in sent:
        occurrences[one.operation, one.step].append(one)
    planned: dict[int, Array] = {}
    node_of = [rank.node for rank in cluster.ranks]
    for (index, step), groups in occurrences.items():
        transfer = plan.operations[index]
        assert isinstance(transfer, Transfer), "only transfers are sent"
        contributions = _contributions(transfer, groups)
        if contributions:
            expected = transfer_traffic(transfer, cluster, contributions=contributions).links
        elif index in planned:
            expected = planned[index]
        else:
            expected = planned[index] = transfer_traffic(transfer, cluster).links
        same = np.array_equal(_crossed(groups, cluster, node_of), expected)
        hold(same, f"operation {index} of step {step}: other bytes on links than the closed form has")
        most = max(contributions.values(), default=0)
        hold(most <= transfer.max_elements, f"operation {index} of step {step}: more than was said to be the most")
    yield "bytes"


def _contributions(transfer: Transfer, groups: Sequence[SentElements]) -> dict[int, int]:
    """Elements by rank, where members send what they have."""
    if not groups[0].contributions:
        return {}
    return {
        rank: num_bytes // transfer.item_bytes
        for one in groups
        for rank, num_bytes in zip(one.group, one.contributions, strict=True)
    }


def _crossed(groups: Sequence[SentElements], cluster: ClusterSpec, node_of: Sequence[int]) -> Array:
    """Bytes on each link, in the order of `Traffic.links`."""
    num_nodes, racks = len(cluster.nodes), [rack.name for rack in cluster.racks]
    links = np.zeros(3 * num_nodes + 2 * len(racks))
    for one in groups:
        for (source, destination), num_bytes in one.links.items():
            start, end = node_of[source], node_of[destination]
            if start == end:
                links[2 * num_nodes + start] += num_bytes
                continue
            links[start] += num_bytes
            links[num_nodes + end] += num_bytes
            left, entered = _racks_around(cluster, start), _racks_around(cluster, end)
            for rack in left - entered:
                links[3 * num_nodes + racks.index(rack)] += num_bytes
            for rack in entered - left:
                links[3 * num_nodes + len(racks) + racks.index(rack)] += num_bytes
    return links


def _racks_around(cluster: ClusterSpec, node: int) -> set[str]:
    """The rack that a node is in, the one that this is in, and so on."""
    home_of = {rack.name: rack.rack for rack in cluster.racks}
    found, name = set(), cluster.nodes[node].rack
    while name is not None:
        found.add(name)
        name = home_of[name]
    return found
