"""The synchroniser sharded: each rank sums and updates its shard of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, get_args

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shapes.trees import TreeShare, by_root, simplified
from autosync.strategy.synchronisers.base import Bounds, ExchangeTopology, Route, Synchroniser, plain_topologies
from autosync.strategy.synchronisers.rules import (
    PLACE,
    Finding,
    MessageFacts,
    elementwise,
    fits_trees,
    need_trees,
    tree_shapes,
)

ShardTopology: TypeAlias = ExchangeTopology | Literal["levels", "trees"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded(Synchroniser):
    """A synchroniser that reduce-scatters gradients, lets each rank update its shard, and all-gathers parameters.

    Shards are equal. Over `levels` and `trees`, a rank's shard is that of the trees whose root it is, so it may be
    larger where links are faster.
    """

    __pydantic_config__ = STRICT

    kind: Literal["sharded"] = "sharded"
    topology: ShardTopology = "native"
    trees: tuple[TreeShare, ...] = ()

    template: ClassVar[str] = "autosync.plan.templates.sharded:sharded_template"
    weight: ClassVar[float] = 0.2
    sums_everywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        need_trees(self.topology, self.trees)

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Replace halving-doubling and levels between two ranks by a ring.

        Trees that mean the same get one form, in the order of their roots.
        """
        if self.topology == "trees":
            return replace(self, trees=by_root(simplified(self.trees)))
        is_ring = self.topology in ("halving_doubling", "levels") and cluster.num_workers == 2
        return replace(self, topology="ring") if is_ring else self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        yield from elementwise(facts, "sharded updates")
        num_workers = facts.cluster.num_workers
        if self.topology == "halving_doubling" and num_workers & (num_workers - 1):
            rule = "reduce-scatter by halving needs a power of two"
            yield (*PLACE, "topology"), f"halving_doubling on {num_workers} workers", rule
        yield from tree_shapes(facts, self.topology, self.trees)
        if self.trees and self.trees[0].num_ranks > num_workers:
            yield (*PLACE, "trees"), "servers in trees of shards", "workers alone own shards and pass them on"

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        yield from (cls(topology=topology) for topology in plain_topologies(limits) if topology != "tree")

    @classmethod
    def link_variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:
        if cluster.racks and cluster.num_workers > 1 and "levels" in limits.topologies:
            yield cls(topology="levels")
        if fits_trees(cluster, limits, takes_servers=False):
            # It loads numpy, which readers of strategies do not need.
            from autosync.strategy.shapes.fitting import fitted_shares

            yield cls(topology="trees", trees=fitted_shares(cluster, takes_servers=False))

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        text = f"{'are' if is_plural else 'is'} reduce-scattered, updated by shard and all-gathered"
        routes = {one.route for one in group}
        return f"{text} over trees" if routes and routes <= {"levels", "trees"} else text

    @property
    def takes_codecs(self) -> bool:
        return True

    @property
    def route(self) -> Route:
        return self.topology

    @property
    def written_trees(self) -> tuple[TreeShare, ...]:
        return self.trees

    def over(self, trees: tuple[TreeShare, ...]) -> Synchroniser:
        return replace(self, topology="trees", trees=trees)

    @property
    def shape(self) -> tuple[object, ...]:
        return self.topology, self.trees

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        return (*Synchroniser.ways(kind), (kind, "levels"), (kind, "trees"))

    @property
    def passes_sums_on(self) -> bool:
        return True

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"sharded.{self.topology}",)

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return tuple(f"sharded.{topology}" for topology in (*get_args(ExchangeTopology), "levels", "trees"))
