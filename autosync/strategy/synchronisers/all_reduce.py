"""The synchroniser all_reduce: every rank gets the sum of all gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.base import TOPOLOGIES, Bounds, Outside, Synchroniser, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Synchroniser):
    """A synchroniser by which every rank gets the sum of all gradients and updates its own copy.

    `hierarchical` reduces within each node first, then between nodes over `topology`, then spreads within nodes.
    """

    __pydantic_config__ = STRICT

    kind: Literal["all_reduce"] = "all_reduce"
    topology: Topology = "native"
    hierarchical: bool = False

    template: ClassVar[str] = "autosync.plan.templates.all_reduce:all_reduce_template"
    weight: ClassVar[float] = 0.4
    sums_everywhere: ClassVar[bool] = True

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Drop `hierarchical` on a flat cluster (one rank on each node, or one node); between two ranks use a ring."""
        groups = cluster.worker_groups()
        form = self
        if form.hierarchical and (len(groups) == 1 or all(len(group) == 1 for group in groups)):
            form = replace(form, hierarchical=False)
        num_meeting = len(groups) if form.hierarchical else cluster.num_workers
        return replace(form, topology="ring") if (form.topology, num_meeting) == ("halving_doubling", 2) else form

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        for hierarchical in (False, True) if limits.hierarchical else (False,):
            yield from (cls(topology=topology, hierarchical=hierarchical) for topology in limits.topologies)

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        yield from Synchroniser.outside(self, limits)
        if self.hierarchical and not limits.hierarchical:
            yield ("hierarchical",), "true", ("false",)

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        text = f"{'are' if is_plural else 'is'} all-reduced"
        return f"{text} within nodes and then between them" if all(one.is_hierarchical for one in group) else text

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.topology}{', hierarchical' if self.hierarchical else ''}"

    @property
    def takes_codecs(self) -> bool:
        return True

    @property
    def route(self) -> Topology:
        return self.topology

    @property
    def shape(self) -> tuple[object, ...]:
        return self.topology, self.hierarchical

    @property
    def is_hierarchical(self) -> bool:
        return self.hierarchical

    @property
    def way(self) -> tuple[object, ...]:
        return self.kind, self.topology, self.hierarchical

    @classmethod
    def ways(cls, kind: str) -> tuple[tuple[object, ...], ...]:
        return tuple((kind, topology, hierarchical) for topology in TOPOLOGIES for hierarchical in (False, True))

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"all_reduce.{self.topology}", *(["all_reduce.hierarchical"] if self.hierarchical else []))

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return (*(f"all_reduce.{topology}" for topology in TOPOLOGIES), "all_reduce.hierarchical")


PLAIN = AllReduce()
"""The default synchroniser of messages, and the canonical form of nearly every synchroniser with one worker."""
