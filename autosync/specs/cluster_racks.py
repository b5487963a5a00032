"""Changes nodes of a cluster, and adds racks to one without racks. Nodes that still agree stay declared alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_rules import alike_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class RackProposal:
    """A rack and the names of its nodes."""

    rack: Rack
    members: tuple[str, ...]


def with_nodes(cluster: ClusterSpec, nodes: Sequence[Node], **changes: Any) -> ClusterSpec:
    """Return the cluster with other facts about its nodes, and with these changes of other fields.

    Nodes that were declared alike stay alike if they still agree as the rules want it.
    """
    by_name = {node.name: node for node in nodes}
    classes: list[tuple[str, ...]] = []
    for names in cluster.alike:
        split: dict[object, list[str]] = {}
        for name in names:
            split.setdefault(alike_facts(by_name[name]), []).append(name)
        classes += [tuple(same) for same in split.values() if len(same) > 1]
    return replace(cluster, nodes=tuple(nodes), alike=tuple(classes), **changes)


def with_racks(cluster: ClusterSpec, proposals: Sequence[RackProposal]) -> ClusterSpec:
    """Return the cluster with these racks added."""
    rack_of = {name: proposal.rack.name for proposal in proposals for name in proposal.members}
    nodes = [replace(node, rack=rack_of.get(node.name, node.rack)) for node in cluster.nodes]
    return with_nodes(cluster, nodes, racks=(*cluster.racks, *(proposal.rack for proposal in proposals)))
