"""The synchroniser all_reduce: every rank gets the sum of all gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.shapes.levels import worker_racks
from autosync.strategy.shapes.trees import TreeShare, simplified
from autosync.strategy.synchronisers.base import (
    ROUTES,
    TOPOLOGIES,
    Bounds,
    Outside,
    Route,
    Synchroniser,
    plain_topologies,
)
from autosync.strategy.synchronisers.rules import PLACE, Finding, MessageFacts, fits_trees, need_trees, tree_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Synchroniser):
    """A synchroniser by which every rank gets the sum of all gradients and updates its own copy.

    `hierarchical` reduces within each node first, then between nodes over `topology`, then spreads within nodes. The
    topology `levels` follows the cluster's nodes and racks; `trees` goes over the trees that are written out. On a
    backend without tagged messages, `levels` are the backend's own collectives within racks and between them.
    """

    __pydantic_config__ = STRICT

    kind: Literal["all_reduce"] = "all_reduce"
    topology: Route = "native"
    hierarchical: bool = False
    trees: tuple[TreeShare, ...] = ()

    template: ClassVar[str] = "autosync.plan.templates.all_reduce:all_reduce_template"
    weight: ClassVar[float] = 0.4
    sums_everywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_trees(self.topology, self.trees)

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Drop `hierarchical` on a flat cluster (one rank on each node, or one node); between two ranks use a ring.

        Trees that mean the same get one form.
        """
        groups = cluster.worker_groups()
        form = self
        if form.topology == "levels" and not BACKENDS[cluster.backend].own_rounds:
            form = form._by_collectives(cluster)
        if form.hierarchical and (len(groups) == 1 or all(len(group) == 1 for group in groups)):
            form = replace(form, hierarchical=False)
        num_meeting = len(groups) if form.hierarchical else cluster.num_workers
        if form.topology == "trees":
            return replace(form, trees=simplified(form.trees))
        is_ring = form.topology in ("halving_doubling", "levels") and num_meeting == 2
        return replace(form, topology="ring") if is_ring else form

    def _by_collectives(self, cluster: ClusterSpec) -> AllReduce:
        """Return the form of `levels` on a backend without tagged messages, as simple as possible.

        Without racks, nodes are the only level. With one rank in each rack, or one rack, there is nothing to group.
        """
        racks = worker_racks(cluster)
        if not cluster.racks:
            return replace(self, topology="native", hierarchical=True)
        is_flat = len(racks) == 1 or all(sum(map(len, rack)) == 1 for rack in racks)
        return replace(self, topology="native") if is_flat else self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        if self.hierarchical and self.topology in ("levels", "trees"):
            yield (*PLACE, "hierarchical"), f"hierarchical with {self.topology}", "levels and trees have nodes already"
        yield from tree_shapes(facts, self.topology, self.trees)
        if self.trees and self.trees[0].num_ranks > facts.cluster.num_workers and facts.is_encoded:
            yield (*PLACE, "trees"), "encoded gradients on servers in trees", "servers in trees add up plain gradients"

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        for hierarchical in (False, True) if limits.hierarchical else (False,):
            yield from (cls(topology=topology, hierarchical=hierarchical) for topology in plain_topologies(limits))
        # Clusters without racks keep the random draws that they have always had.
        if cluster.racks and cluster.num_workers > 1:
            if "levels" in limits.topologies:
                yield cls(topology="levels")
            if fits_trees(cluster, limits, takes_servers=True):
                yield cls.fitted(cluster)

    @classmethod
    def link_variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        if not cluster.racks and fits_trees(cluster, limits, takes_servers=True):
            yield cls.fitted(cluster)

    @classmethod
    def fitted(cls, cluster: ClusterSpec, *, num_bytes: float | None = None) -> AllReduce:
        """Return the all-reduce that follows the cluster's links: over trees with which `num_bytes` finish first.

        It is a ring where no trees can be faster, because a ring needs fewer messages.
        """
        # They load numpy, which readers of strategies do not need.
        from autosync.strategy.shapes.fitting import NUM_BYTES, fitted_shares
        from autosync.strategy.shapes.links import trees_may_gain

        if trees_may_gain(cluster, takes_servers=True):
            trees = fitted_shares(cluster, num_bytes=num_bytes or NUM_BYTES)
            takes_servers = any(parent >= cluster.num_workers for share in trees for parent in share.up)
            # For few bytes, the trees may do without the servers.
            if takes_servers or trees_may_gain(cluster, takes_servers=False):
                return cls(topology="trees", trees=trees)
        return cls(topology="ring")

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        yield from Synchroniser.outside(self, limits)
        if self.hierarchical and not limits.hierarchical:
            yield ("hierarchical",), "true", ("false",)

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        text = f"{'are' if is_plural else 'is'} all-reduced"
        routes = {one.route for one in group}
        if routes == {"levels"}:
            return f"{text} within racks and then between them"
        if routes == {"trees"}:
            return f"{text} over trees"
        return f"{text} within nodes and then between them" if all(one.is_hierarchical for one in group) else text

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.topology}{', hierarchical' if self.hierarchical else ''}"

    @property
    def takes_codecs(self) -> bool:
        return True

    @property
    def route(self) -> Route:
        return self.topology

    @property
    def needs_own_rounds(self) -> bool:
        return self.topology not in ("native", "levels")

    @property
    def written_trees(self) -> tuple[TreeShare, ...]:
        return self.trees

    def over(self, trees: tuple[TreeShare, ...]) -> Synchroniser:
        return replace(self, topology="trees", trees=trees)

    @property
    def shape(self) -> tuple[object, ...]:
        return self.topology, self.hierarchical, self.trees

    @property
    def is_hierarchical(self) -> bool:
        return self.hierarchical

    @property
    def way(self) -> tuple[object, ...]:
        return self.kind, self.topology, self.hierarchical

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        plain = tuple((kind, topology, hierarchical) for topology in TOPOLOGIES for hierarchical in (False, True))
        return (*plain, (kind, "levels", False), (kind, "trees", False))

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"all_reduce.{self.topology}", *(["all_reduce.hierarchical"] if self.hierarchical else []))

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return (*(f"all_reduce.{route}" for route in ROUTES), "all_reduce.hierarchical")


PLAIN = AllReduce()
"""The default synchroniser of messages, and the canonical form of nearly every synchroniser with one worker."""
