"""What the shapes of a plan's operations come to on a cluster, as columns: worked out once for many plans.

Plans differ in sizes and in what waits for what; who takes part, over which links, is of a few shapes. An *instance* is
a row here, of a shape's groups that do the same (see `usage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import Shape
from autosync.simulators.alone import Place, seconds_alone
from autosync.simulators.costs import LOOPBACK_RATE, Costs, link_rate
from autosync.simulators.symmetry import Classes, classes_of
from autosync.simulators.timeline.problem import Flags, Floats, Integers
from autosync.simulators.usage import Instance, Link, instances_of, links_of
from autosync.specs.cluster import ClusterSpec


class Catalog(NamedTuple):
    """Rows of instances by shape, and what holds for all: which classes train, and what links carry a second.

    `seconds` is what a transfer takes before its bytes flow, `alone` what each byte takes with all links to itself,
    `sent` the share of the buffer that a member sends that only sends; `server_trainer` is the class whose step a
    server goes by.
    """

    trains: Flags
    server_trainer: int
    capacity: Floats
    first_instance: Integers
    num_members: Integers
    seconds: Floats
    alone: Floats
    sent: Floats
    first_member: Integers
    member: Integers
    only_sends: Flags
    first_use: Integers
    use_link: Integers
    use_share: Floats
    use_connections: Floats


class Catalogs:
    """Catalogs of a cluster by its classes of ranks; one grows whenever a shape is new to it."""

    def __init__(self, cluster: ClusterSpec, costs: Costs, *, classes: Classes | None = None) -> None:
        self._cluster = cluster
        self._costs = costs
        self._classes = classes
        self._found: dict[Classes, tuple[dict[Shape, int], Catalog]] = {}

    def find(self, shapes: Sequence[Shape]) -> tuple[Catalog, Integers]:
        """The catalog that has these shapes, and where."""
        classes = self._classes or classes_of(self._cluster, shapes)
        known = self._found.get(classes)
        if known is None or any(shape not in known[0] for shape in shapes):
            numbers = dict(known[0]) if known else {}
            for shape in shapes:
                numbers.setdefault(shape, len(numbers))
            known = self._found[classes] = numbers, catalog_of(self._cluster, classes, list(numbers), self._costs)
        numbers, catalog = known
        return catalog, _integers(numbers[shape] for shape in shapes)


def catalog_of(cluster: ClusterSpec, classes: Classes, shapes: Sequence[Shape], costs: Costs) -> Catalog:
    """The catalog of these shapes, in their order."""
    places = _places(cluster, costs)
    rows = [[(shape, one) for one in instances_of(cluster, classes, shape)] for shape in shapes]
    flat = [row for of_shape in rows for row in of_shape]
    uses = [_uses(cluster, classes, one, costs) for _, one in flat]
    roles = [cluster.ranks[classes.of_rank.index(number)].role for number in range(len(classes.num_ranks))]
    links = links_of(cluster, classes)
    return Catalog(
        trains=np.array([role == "worker" for role in roles], dtype=np.bool_),
        server_trainer=classes.of_rank[0],
        # The processors of an emulated cluster come last.
        capacity=_floats([*(_capacity(cluster, link, costs) for link in links), float(costs.num_processors or 1)]),
        first_instance=_ends(map(len, rows)),
        num_members=_integers(one.num_members for _, one in flat),
        seconds=_floats(_seconds(shape, one, costs) for shape, one in flat),
        alone=_floats(_alone(shape, one, places, costs) for shape, one in flat),
        sent=_floats(one.sent for _, one in flat),
        first_member=_ends(len(one.members) for _, one in flat),
        member=_integers(member for _, one in flat for member in one.members),
        only_sends=np.array([member in one.senders for _, one in flat for member in one.members], dtype=np.bool_),
        first_use=_ends(map(len, uses)),
        use_link=_integers(link for use in uses for link, _, _ in use),
        use_share=_floats(share for use in uses for _, share, _ in use),
        use_connections=_floats(connections for use in uses for _, _, connections in use),
    )


def _seconds(shape: Shape, instance: Instance, costs: Costs) -> float:
    if shape.collective is None or instance.num_members == 1:
        return 0.0
    one_round = costs.native_round_seconds if shape.algorithm == "native" else costs.round_seconds
    return costs.transfer_seconds + instance.num_rounds * one_round


def _alone(shape: Shape, instance: Instance, places: Sequence[Place], costs: Costs) -> float:
    """What a byte takes with all links to itself, or where adding up takes longer."""
    if shape.collective is None or shape.algorithm is None or instance.num_members == 1:
        return 0.0
    members = tuple([places[rank] for rank in instance.group])
    on_links = seconds_alone(shape.collective, shape.algorithm, members) / instance.num_shares
    return max(on_links, instance.added / costs.rate_added)


def _uses(cluster: ClusterSpec, classes: Classes, instance: Instance, costs: Costs) -> list[tuple[int, float, float]]:
    """Links, the share of the buffer that passes, and connections; the processors, where they are everybody's."""
    uses = [(use.link, use.share, use.num_connections) for use in instance.uses]
    if costs.num_processors is not None and instance.moved:
        connections = max((use.num_connections for use in instance.uses), default=1.0)
        work = instance.moved * costs.processor_seconds_per_byte
        uses.append((len(links_of(cluster, classes)), work, connections))
    return uses


def _places(cluster: ClusterSpec, costs: Costs) -> list[Place]:
    nodes = [
        [_rate(cluster, kind, node, costs) for kind in ("out", "in", "within")] for node in range(len(cluster.nodes))
    ]
    return [Place(rank.node, *nodes[rank.node]) for rank in cluster.ranks]


def _capacity(cluster: ClusterSpec, link: Link, costs: Costs) -> float:
    """Of a link. Within a node each rank can send at the rate that two ranks have between them."""
    rate = _rate(cluster, link.kind, link.position, costs)
    if link.kind != "within":
        return rate
    return rate * max(1, sum(rank.node == link.position for rank in cluster.ranks))


def _rate(cluster: ClusterSpec, kind: str, position: int, costs: Costs) -> float:
    """Payload bytes a second of a link: as it was probed, else what its file claims."""
    calibration = cluster.calibration
    if kind.startswith("rack"):
        rack = cluster.racks[position]
        probed = {one.name: one for one in calibration.racks}.get(rack.name) if calibration else None
        if kind == "rack_out":
            return link_rate(rack.uplink_out, probed.rate_out if probed else None, costs.link_share)
        return link_rate(rack.uplink_in, probed.rate_in if probed else None, costs.link_share)
    node = cluster.nodes[position]
    found = calibration.node(node.name) if calibration else None
    if kind == "within":
        return link_rate(node.intra_bandwidth or LOOPBACK_RATE, found.rate_within if found else None, costs.link_share)
    if kind == "out":
        return link_rate(node.bandwidth_out, found.rate_out if found else None, costs.link_share)
    return link_rate(node.bandwidth_in, found.rate_in if found else None, costs.link_share)


def _ends(lengths: Iterable[int]) -> Integers:
    """Where rows of these lengths begin, and the last one ends."""
    return np.concatenate(([0], np.cumsum(list(lengths)))).astype(np.int64)


def _integers(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)
