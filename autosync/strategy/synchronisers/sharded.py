"""The synchroniser sharded: each rank sums and updates its shard of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.base import Bounds, ExchangeTopology, Synchroniser, plain_topologies
from autosync.strategy.synchronisers.rules import PLACE, Finding, MessageFacts, elementwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded(Synchroniser):
    """A synchroniser that reduce-scatters gradients, lets each rank update its shard, and all-gathers parameters."""

    __pydantic_config__ = STRICT

    kind: Literal["sharded"] = "sharded"
    topology: ExchangeTopology = "native"

    template: ClassVar[str] = "autosync.plan.templates.sharded:sharded_template"
    weight: ClassVar[float] = 0.2
    sums_everywhere: ClassVar[bool] = True

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Replace halving-doubling between two ranks by a ring."""
        is_ring = self.topology == "halving_doubling" and cluster.num_workers == 2
        return replace(self, topology="ring") if is_ring else self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        yield from elementwise(facts, "sharded updates")
        num_workers = facts.cluster.num_workers
        if self.topology == "halving_doubling" and num_workers & (num_workers - 1):
            rule = "reduce-scatter by halving needs a power of two"
            yield (*PLACE, "topology"), f"halving_doubling on {num_workers} workers", rule

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        yield from (cls(topology=topology) for topology in plain_topologies(limits) if topology != "tree")

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:  # noqa: ARG003
        return f"{'are' if is_plural else 'is'} reduce-scattered, updated by shard and all-gathered"

    @property
    def takes_codecs(self) -> bool:
        return True

    @property
    def route(self) -> ExchangeTopology:
        return self.topology

    @property
    def passes_sums_on(self) -> bool:
        return True

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"sharded.{self.topology}",)

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return tuple(f"sharded.{topology}" for topology in get_args(ExchangeTopology))
