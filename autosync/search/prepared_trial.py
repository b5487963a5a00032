"""A prepared trial: a candidate with its bundle, its plan and the facts of that plan.

Lowering a large strategy takes a good part of a second, so a study lowers each strategy once. The search needs the plan
to see whether the strategy may be tried, the trial needs the bundle, and the record needs the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from autosync.datasets.facts import plan_facts
from autosync.datasets.schema import PlanFacts
from autosync.plan.bundling import bundle_of_plan
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.search.candidates import Candidate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.strategy.representation import Strategy

T = TypeVar("T")

NUM_KEPT = 64
"""The number of plans and prepared trials that are kept. It exceeds the proposals of a round, so nothing is lowered
again before its trial ends, and it needs little memory even for models with thousands of variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTrial:
    """A candidate with everything that running and recording it needs.

    Stock DDP as it ships has no bundle, plan or facts.
    """

    candidate: Candidate
    bundle: Bundle | None = None
    plan: Plan | None = None
    facts: PlanFacts | None = None


class TrialPreparer:
    """Prepares the trials of one model on one cluster. The domain of the search and the trial runner share it."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.model = model
        self.cluster = cluster
        self._plans: dict[Hashable, Plan] = {}
        self._trials: dict[Hashable, PreparedTrial] = {}

    def plan(self, strategy: Strategy) -> Plan:
        """Return the plan of a strategy that is legal for the model on the cluster."""
        return _kept(self._plans, _key(strategy), lambda: lower(strategy, self.model, self.cluster))

    def prepare(self, candidate: Candidate) -> PreparedTrial:
        """Return the candidate as a prepared trial. Equal candidates get the same prepared trial."""
        return _kept(self._trials, (candidate.origin, candidate.strategy_id), lambda: self._prepared(candidate))

    def _prepared(self, candidate: Candidate) -> PreparedTrial:
        if candidate.strategy is None:
            return PreparedTrial(candidate=candidate)
        plan = self.plan(candidate.strategy)
        return PreparedTrial(
            candidate=candidate,
            bundle=bundle_of_plan(plan, candidate.strategy, self.model, self.cluster),
            plan=plan,
            facts=plan_facts(plan, self.cluster),
        )


def _key(strategy: Strategy) -> Hashable:
    """Return all fields of a strategy as a key.

    A strategy itself is not hashable, because its partitions are a mapping.
    """
    values = (getattr(strategy, field.name) for field in fields(strategy))
    return tuple(tuple(value.items()) if isinstance(value, Mapping) else value for value in values)


def _kept(kept: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """Return the value of a key and make it if it is not kept; the oldest value makes room for it."""
    if key not in kept:
        if len(kept) == NUM_KEPT:
            del kept[next(iter(kept))]
        kept[key] = make()
    return kept[key]
