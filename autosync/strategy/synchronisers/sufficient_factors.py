"""The synchroniser sufficient_factors: a linear variable's gradient travels as its two factors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from autosync.documents import STRICT
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.synchronisers.base import Bounds, GatherTopology, Synchroniser, gather_topologies
from autosync.strategy.synchronisers.rules import PLACE, Finding, MessageFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SufficientFactors(Synchroniser):
    """A synchroniser by which every rank gets the two factors of each other rank's gradient and multiplies them."""

    __pydantic_config__ = STRICT

    kind: Literal["sufficient_factors"] = "sufficient_factors"
    topology: GatherTopology = "native"

    template: ClassVar[str] = "autosync.plan.templates.sufficient_factors:sufficient_factors_template"
    weight: ClassVar[float] = 0.0
    refuses_shares: ClassVar[str] = "factors have a row for each example, so their sizes would differ by rank"

    def problems(self, facts: MessageFacts) -> Iterator[Finding]:
        part = facts.parts[0]
        if len(facts.parts) > 1:
            yield ("parts",), "several parts travel as factors", "factors travel alone: one part in the message"
        if part.variable.kind != "linear":
            rule = "factors need a linear variable: a matrix that is used once a step and not tied"
            yield PLACE, f"{part.name} is {part.variable.kind}", rule
        if facts.model.accumulation_steps > 1:
            yield PLACE, "factors with gradient accumulation", "factors of several microsteps do not add up"
        if facts.is_sliced:
            yield ("slice_bytes",), "factors in slices", "factors are not sliced: both are needed to rebuild"

    @classmethod
    def variants(cls, cluster: ClusterSpec, limits: Bounds) -> Iterator[Synchroniser]:  # noqa: ARG003
        yield from (cls(topology=topology) for topology in gather_topologies(limits))

    @classmethod
    def in_words(cls, group: Sequence[Synchroniser], *, is_plural: bool) -> str:  # noqa: ARG003
        return f"{'gather' if is_plural else 'gathers'} the factors of gradients"

    @property
    def route(self) -> GatherTopology:
        return self.topology

    @property
    def travels_alone(self) -> bool:
        return True

    @property
    def shares(self) -> tuple[str, ...]:
        return (f"factors.{self.topology}",)

    @classmethod
    def share_names(cls) -> tuple[str, ...]:
        return tuple(f"factors.{topology}" for topology in get_args(GatherTopology))
