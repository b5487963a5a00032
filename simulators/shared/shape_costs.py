"""The costs of the shapes of a plan's operations on a cluster, as columns, computed once for many plans.

Plans differ in sizes and in the order of their operations, but they have few shapes: sets of members and their links.
An *instance* is a row here, for those groups of a shape that do the same (see `link_use`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import Shape
from autosync.simulators.shared.arrays import Floats, Integers
from autosync.simulators.shared.costs import flow_limit, link_rate
from autosync.simulators.shared.link_use import ClusterLink, Instance, instances_of, links_of
from autosync.simulators.shared.rank_classes import Classes
from autosync.simulators.shared.uncontended import MemberPlace, seconds_alone
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.link_calibration import measured_node, measured_racks


class ShapeCosts(NamedTuple):
    """Instances by shape, their members and their loads on links; and `capacity`, the bytes a second of each link.

    `seconds` is the time of a transfer before its bytes flow, and `alone` the time of each byte without other traffic.
    A shape's instances, and an instance's members and uses, are those from `first_...[i]` to `first_...[i + 1]`.
    """

    capacity: Floats
    first_instance: Integers
    num_members: Integers
    seconds: Floats
    alone: Floats
    first_member: Integers
    member: Integers
    first_use: Integers
    use_link: Integers
    use_share: Floats


def shape_costs_of(cluster: ClusterSpec, classes: Classes, shapes: Sequence[Shape], costs: Costs) -> ShapeCosts:
    """Return the columns of these shapes, in their order."""
    places = _places(cluster, costs)
    limit = min([flow_limit(cluster, node, costs) for node in range(len(cluster.nodes))])
    instances = [[(shape, one) for one in instances_of(cluster, classes, shape)] for shape in shapes]
    flat = [pair for of_shape in instances for pair in of_shape]
    return ShapeCosts(
        # The processors of an emulated cluster come last.
        capacity=_floats([*(_capacity(cluster, link, costs) for link in links_of(cluster, classes)), 1.0]),
        first_instance=_ends(map(len, instances)),
        num_members=_integers(one.num_members for _, one in flat),
        seconds=_floats(_seconds(shape, one, costs) for shape, one in flat),
        alone=_floats(_alone(shape, one, places, limit, costs) for shape, one in flat),
        first_member=_ends(len(one.members) for _, one in flat),
        member=_integers(member for _, one in flat for member in one.members),
        first_use=_ends(len(one.uses) for _, one in flat),
        use_link=_integers(use.link for _, one in flat for use in one.uses),
        use_share=_floats(use.share for _, one in flat for use in one.uses),
    )


def _seconds(shape: Shape, instance: Instance, costs: Costs) -> float:
    if shape.collective is None or instance.num_members == 1:
        return 0.0
    one_round = _native_round(instance, costs) if shape.algorithm == "native" else costs.round_seconds
    return costs.transfer_seconds + instance.num_rounds * one_round


def _native_round(instance: Instance, costs: Costs) -> float:
    """Return the mean wait of a round of the backend's collective: what goes round crosses links of both kinds."""
    between, within = costs.native_round_seconds, costs.native_round_within
    if between == within or instance.moved == 0:
        return between
    stays = instance.stays / instance.moved
    return stays * within + (1.0 - stays) * between


def _alone(shape: Shape, instance: Instance, places: Sequence[MemberPlace], limit: float, costs: Costs) -> float:
    """Return the time of a byte without other traffic, or the time to add it up if that is longer."""
    if shape.collective is None or shape.algorithm is None or instance.num_members == 1:
        return 0.0
    members = tuple([places[rank] for rank in instance.group])
    on_links = seconds_alone(shape.collective, shape.algorithm, members, limit) / instance.num_shares
    cores = costs.servers.num_cores if shape.algorithm == "star" else 1
    return max(on_links, instance.added / (costs.rate_added * cores))


def _places(cluster: ClusterSpec, costs: Costs) -> list[MemberPlace]:
    nodes = [
        [_rate(cluster, kind, node, costs) for kind in ("out", "in", "within")] for node in range(len(cluster.nodes))
    ]
    return [MemberPlace(rank.node, *nodes[rank.node]) for rank in cluster.ranks]


def _capacity(cluster: ClusterSpec, link: ClusterLink, costs: Costs) -> float:
    """Return the capacity of a link. Within a node, each rank can send at the rate between two ranks."""
    if link.kind == "inside":
        total = cluster.nodes[link.position].intra_total
        assert total is not None, "the ranks of such a node share something"
        return total * costs.link_share
    rate = _rate(cluster, link.kind, link.position, costs)
    if link.kind != "within":
        return rate
    return rate * max(1, sum(rank.node == link.position for rank in cluster.ranks))


def _rate(cluster: ClusterSpec, kind: str, position: int, costs: Costs) -> float:
    """Return the payload bytes a second of a link: as probed, else as its file claims."""
    if kind.startswith("rack"):
        rack = cluster.racks[position]
        probed = measured_racks(cluster).get(rack.name)
        if kind == "rack_out":
            return link_rate(rack.uplink_out, probed.rate_out if probed else None, costs.link_share)
        return link_rate(rack.uplink_in, probed.rate_in if probed else None, costs.link_share)
    node = cluster.nodes[position]
    found = measured_node(cluster, node.name)
    if kind == "within":
        return link_rate(
            node.intra_bandwidth or costs.within.rate, found.rate_within if found else None, costs.link_share
        )
    if kind == "out":
        return link_rate(node.bandwidth_out, found.rate_out if found else None, costs.link_share)
    return link_rate(node.bandwidth_in, found.rate_in if found else None, costs.link_share)


def _ends(lengths: Iterable[int]) -> Integers:
    """Return where rows of these lengths begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(list(lengths)))).astype(np.int64)


def _integers(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)
