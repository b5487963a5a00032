"""The synchroniser periodic: workers train their own copies and average their parameters every few steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Bounds, Outside, Synchroniser, Topology, plain_topologies
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.rules import ALONE, PLACE, Finding, MessageFacts
from autosync.strategy.wording import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodic(Synchroniser):
    """A synchroniser by which each worker trains its own copy of the parameters; every `every` steps it averages them.

    With `outer`, an outer optimizer makes a step with the averaged change instead of taking it as it is.
    """

    __pydantic_config__ = STRICT

    kind: Literal["periodic"] = "periodic"
    every: int
    topology: Topology = "native"
    outer: OuterOptimizer | None = None

    template: ClassVar[str] = "autosync.plan.templates.periodic:periodic_template"
    weight: ClassVar[float] = 0.1
    refuses_shares: ClassVar[str] = ALONE

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every {self.every} steps is never (1 or more)")

    def canonical(self, cluster: ClusterSpec) -> Synchroniser:
        """Replace averaging every step without an outer optimizer by an all-reduce; between two ranks use a ring."""
        if not self.trains_apart:
            return AllReduce(topology=self.topology).canonical(cluster)
        is_ring = self.topology == "halving_doubling" and cluster.num_workers == 2
        return replace(self, topology="ring") if is_ring else self

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        if facts.model.loss_scaling:
            rule = "a worker whose own gradients overflow would leave out the step alone"
            yield PLACE, "periodic averaging in a task that scales its loss", rule

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        if "stale" in limits.allow:
            for every, outer in itertools.product(limits.periods, limits.outer_optimizers):
                yield from (cls(every=every, topology=topology, outer=outer) for topology in plain_topologies(limits))

    def outside(self, limits: Bounds) -> Iterator[Outside]:
        yield from Synchroniser.outside(self, limits)
        if "stale" not in limits.allow:
            yield (), self.kind, ("with `stale` allowed only",)
        if self.every not in limits.periods:
            yield ("every",), self.every, limits.periods
        if self.outer not in limits.outer_optimizers:
            yield ("outer",), self.outer, limits.outer_optimizers

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:
        return f"{'are' if is_plural else 'is'} averaged every {spread([one.period for one in group])} steps"

    @property
    def route(self) -> Topology:
        return self.topology

    @property
    def period(self) -> int:
        return self.every

    @property
    def outer_optimizer(self) -> OuterOptimizer | None:
        return self.outer

    @property
    def trains_apart(self) -> bool:
        return self.every > 1 or self.outer is not None

    @property
    def shares(self) -> tuple[str, ...]:
        return ("periodic",)

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return ("periodic",)
