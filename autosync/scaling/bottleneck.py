"""The bottleneck of a predicted step: compute, a link, or waiting while neither is busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autosync.plan.lowering import lower
from autosync.runtime.varying.expected_bytes import expected_traffic
from autosync.search.link_times import through_shared
from autosync.simulators.shared.costs import link_rate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.link_calibration import measured_node, measured_racks
from autosync.specs.links import inside_name, interface_name, uplink_name
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.stage_compute import strategy_compute_seconds

LITTLE_EXPOSED = 0.1
"""Compute is the bottleneck if exposed communication takes less than this share of a step."""

BUSY = 0.75
"""A link is the bottleneck if it is busy for at least this share of a step."""

_ALIKE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The bottleneck of a step: its kind, the shares of compute and exposed communication, and the busiest link.

    - `compute`: compute hides nearly all communication;
    - `link`: a link is busy most of the time;
    - `waiting`: communication is exposed while no link is busy: rounds, messages and processors take the time.
    """

    kind: Literal["compute", "link", "waiting"]
    compute_share: float
    exposed_share: float
    link: str | None
    link_share: float

    def __str__(self) -> str:
        """Describe the bottleneck in a few words: `the nodes' links, 97% busy`."""
        if self.kind == "compute":
            return "compute"
        if self.kind == "link":
            return f"{self.link}, {self.link_share:.0%} busy"
        return f"waiting; links {self.link_share:.0%} busy"


def bottleneck_of(
    seconds: float, strategy: Strategy | None, model: ModelSpec, cluster: ClusterSpec, costs: Costs
) -> Bottleneck:
    """Return the bottleneck of a step that takes `seconds`. Without a strategy, nothing is synchronised."""
    compute = min(strategy_compute_seconds(strategy, model, cluster) / seconds, 1.0)
    link, busy = _busiest(strategy, model, cluster, costs) if strategy is not None else (None, 0.0)
    exposed, busy = 1.0 - compute, min(busy / seconds, 1.0)
    kind: Literal["compute", "link", "waiting"] = "waiting"
    if exposed < LITTLE_EXPOSED:
        kind = "compute"
    elif busy >= BUSY:
        kind = "link"
    return Bottleneck(kind=kind, compute_share=compute, exposed_share=exposed, link=link, link_share=busy)


def _busiest(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> tuple[str | None, float]:
    """Return the name of the link that takes longest for its bytes of a step, and that time."""
    loads = dict(_loads(strategy, model, cluster, costs))
    if not loads:
        return None, 0.0
    link = max(loads, key=lambda name: loads[name])
    interfaces = [
        [loads[interface_name(node.name, "out")], loads[interface_name(node.name, "in")]] for node in cluster.nodes
    ]
    if len(interfaces) > 1 and all(max(pair) >= _ALIKE * loads[link] for pair in interfaces):
        return "the nodes' links", loads[link]
    return link, loads[link]


def _loads(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> Iterator[tuple[str, float]]:
    """Yield each link with the seconds that its bytes of a step take at its probed rate."""
    traffic = expected_traffic(lower(strategy, model, cluster), model, cluster)
    uplinks = measured_racks(cluster)
    share = costs.payload_share
    shared = through_shared(cluster, traffic)
    for position, node in enumerate(cluster.nodes):
        probed = measured_node(cluster, node.name)
        out = link_rate(node.bandwidth_out, probed.rate_out if probed else None, share)
        into = link_rate(node.bandwidth_in, probed.rate_in if probed else None, share)
        yield interface_name(node.name, "out"), float(traffic.node_out[position]) / out
        yield interface_name(node.name, "in"), float(traffic.node_in[position]) / into
        inside = 0.0
        if node.intra_bandwidth is not None and node.devices > 1:
            within = link_rate(node.intra_bandwidth, probed.rate_within if probed else None, share)
            inside = float(traffic.node_within[position]) / (within * node.devices)
        if node.intra_total is not None:
            inside = max(inside, shared[position] / link_rate(node.intra_total, None, share))
        if inside > 0:
            yield inside_name(node.name), inside
    for position, rack in enumerate(cluster.racks):
        one = uplinks.get(rack.name)
        out = link_rate(rack.uplink_out, one.rate_out if one else None, share)
        into = link_rate(rack.uplink_in, one.rate_in if one else None, share)
        yield uplink_name(rack.name, "out"), float(traffic.rack_out[position]) / out
        yield uplink_name(rack.name, "in"), float(traffic.rack_in[position]) / into
