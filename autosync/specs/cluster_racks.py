"""Adds racks to a cluster without racks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.specs.cluster import ClusterSpec, Rack


@dataclass(frozen=True, slots=True, kw_only=True)
class RackProposal:
    """A rack and the names of its nodes."""

    rack: Rack
    members: tuple[str, ...]


def with_racks(cluster: ClusterSpec, proposals: Sequence[RackProposal]) -> ClusterSpec:
    """Return the cluster with these racks added.

    Nodes that were declared alike stay alike if they are in the same rack, or all in none.
    """
    rack_of = {name: proposal.rack.name for proposal in proposals for name in proposal.members}
    nodes = tuple(replace(node, rack=rack_of.get(node.name, node.rack)) for node in cluster.nodes)
    classes: list[tuple[str, ...]] = []
    for names in cluster.alike:
        split: dict[str | None, list[str]] = {}
        for name in names:
            split.setdefault(rack_of.get(name), []).append(name)
        classes += [tuple(same) for same in split.values() if len(same) > 1 or len(split) == 1]
    racks = (*cluster.racks, *(proposal.rack for proposal in proposals))
    return replace(cluster, nodes=nodes, racks=racks, alike=tuple(classes))
