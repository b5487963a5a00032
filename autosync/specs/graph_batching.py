"""How a model whose graph changes is batched: the aspect of a strategy, and what a profile measured about it.

Such a model runs the vertices of its examples in groups (see `autosync.graphs`). With another order of groups, a rank's
passes take longer or shorter. And a step takes as long as the rank whose examples are the largest: `dealing` says how
the examples of a global batch come to the ranks. Neither changes the mean over the global batch, so plans do not depend
on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol, runtime_checkable

from autosync.documents import STRICT

OrderName = Literal["naive", "depth", "agenda", "searched"]
Dealing = Literal["count", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBatching:
    """The order of groups, whether weight gradients wait for one product, and how examples are dealt to ranks.

    Dealt by `count`, each rank draws its own batch. Dealt by `cost`, the ranks' batches are put together, and their
    examples are given to ranks so that all are ready at about the same time.
    """

    __pydantic_config__ = STRICT

    order: OrderName = "depth"
    lazy_weights: bool = False
    dealing: Dealing = "count"

    def __post_init__(self) -> None:
        if self.order == "naive" and self.lazy_weights:
            raise ValueError("naive with lazy weights (without groups there is nothing to add up)")

    @property
    def policy(self) -> tuple[OrderName, bool]:
        """The part of it that each rank follows by itself."""
        return self.order, self.lazy_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySeconds:
    """The time of the passes on the profile's batches under one policy."""

    __pydantic_config__ = STRICT

    order: OrderName
    lazy_weights: bool = False
    seconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"{self.seconds} is no duration (above 0)")

    @property
    def name(self) -> str:
        return f"{self.order}, lazy weights" if self.lazy_weights else self.order

    @property
    def policy(self) -> tuple[OrderName, bool]:
        return self.order, self.lazy_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DealingTimes:
    """How long the slowest of some workers takes, on average, compared with a batch that is drawn by count.

    Dealt by `cost`, that may even be shorter: a rank with shallow examples only has few groups to run.
    """

    __pydantic_config__ = STRICT

    num_workers: int
    by_count: float
    by_cost: float

    def __post_init__(self) -> None:
        if self.num_workers < 2:
            raise ValueError(f"{self.num_workers} workers do not wait for each other (2 or more)")
        if not all(math.isfinite(one) and one > 0 for one in (self.by_count, self.by_cost)):
            raise ValueError(f"{self.by_count} and {self.by_cost} are no factors (above 0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphProfile:
    """What a profile found about the examples of a model whose graph changes, and about its batching policies.

    `vertices` and `depths` are of an example: least, median, 90 % and most. `policies` were measured in turn; the first
    is the model's own, with which the timeline was measured. `table` is that of the searched order. A step takes
    `vertex_seconds` for each vertex and `level_seconds` for each level of the deepest example. `dealings` are by the
    number of workers, in ascending order; without any, examples cannot be dealt by cost, and `undealt` says why.
    """

    __pydantic_config__ = STRICT

    vertices: tuple[int, ...]
    depths: tuple[int, ...]
    policies: tuple[PolicySeconds, ...]
    table: Mapping[str, str] = field(default_factory=dict, hash=False)
    vertex_seconds: float = 0.0
    level_seconds: float = 0.0
    dealings: tuple[DealingTimes, ...] = ()
    undealt: str = ""

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("a profile of graphs without policies (the first is the model's own)")
        if len({one.policy for one in self.policies}) < len(self.policies):
            raise ValueError("two policies are the same (each is measured once)")
        if any(a.num_workers >= b.num_workers for a, b in pairwise(self.dealings)):
            raise ValueError("the dealings are not in the order of workers (ascending)")

    @property
    def own(self) -> GraphBatching:
        """The batching without a strategy's: the model's own policy, and examples by count."""
        return GraphBatching(order=self.policies[0].order, lazy_weights=self.policies[0].lazy_weights)

    @property
    def knows_dealing(self) -> bool:
        """Whether examples can be dealt by cost."""
        return bool(self.dealings)

    def seconds_of(self, batching: GraphBatching) -> float | None:
        """Return the measured time of the passes under a policy; None if it was not measured."""
        return next((one.seconds for one in self.policies if one.policy == batching.policy), None)

    def dealing_factor(self, dealing: Dealing, num_workers: int) -> float:
        """Return how much longer the slowest of so many workers takes than one alone; interpolated between numbers."""
        if num_workers < 2 or not self.dealings:
            return 1.0
        points = [
            (math.log2(one.num_workers), one.by_cost if dealing == "cost" else one.by_count) for one in self.dealings
        ]
        return _interpolated(points, math.log2(num_workers))

    def factor(self, batching: GraphBatching | None, num_workers: int) -> float:
        """Return how much longer the slowest worker's passes take than the profiled ones."""
        chosen = batching or self.own
        seconds = self.seconds_of(chosen)
        assert seconds is not None, "a legal strategy has a measured policy"
        return seconds / self.policies[0].seconds * self.dealing_factor(chosen.dealing, num_workers)


@runtime_checkable
class TakesBatching(Protocol):
    """A module that runs vertices in groups, and follows the policy of a bundle."""

    def take_batching(self, batching: GraphBatching, profile: GraphProfile) -> None: ...


def in_words(batching: GraphBatching) -> str:
    """Return a batching in words: `vertices by agenda with lazy weights, examples dealt by cost`."""
    lazy = " with lazy weights" if batching.lazy_weights else ""
    order = "one after the other" if batching.order == "naive" else f"by {_ORDERS.get(batching.order, batching.order)}"
    return f"vertices {order}{lazy}, examples dealt by {batching.dealing}"


_ORDERS = {"searched": "a searched order"}


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value on the line between the neighbours; outside, that of the nearest point."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]
