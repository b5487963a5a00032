"""The synchroniser sparse_gather: every rank gets the touched rows of every other rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.base import Bounds, GatherTopology, Synchroniser, gather_topologies
from autosync.strategy.synchronisers.rules import Finding, MessageFacts, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGather(Synchroniser):
    """A synchroniser by which every rank gets the touched rows of every other rank and updates its own copy."""

    __pydantic_config__ = STRICT

    kind: Literal["sparse_gather"] = "sparse_gather"
    topology: GatherTopology = "native"

    template: ClassVar[str] = "autosync.plan.templates.sparse_gather:sparse_gather_template"
    weight: ClassVar[float] = 0.0

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        yield from rows(facts)

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        yield from (cls(topology=topology) for topology in gather_topologies(limits))

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:  # noqa: ARG003
        return f"{'gather' if is_plural else 'gathers'} touched rows"

    @property
    def route(self) -> GatherTopology:
        return self.topology

    @property
    def travels_alone(self) -> bool:
        return True

    @property
    def sends_rows(self) -> bool:
        return True

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"rows.{self.topology}",)

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return tuple(f"rows.{topology}" for topology in get_args(GatherTopology))
