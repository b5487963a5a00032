"""A bundle made from its parts: a strategy, the model and the cluster, with the identities that it has there."""

from __future__ import annotations

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Strategy


def bundled(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    """The strategy, which must be legal there, as what tuning hands over. It is lowered for the plan's identity."""
    return bundle_of_plan(lower(strategy, model, cluster), strategy, model, cluster)


def bundle_of_plan(plan: Plan, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    """The bundle of a strategy whose plan is at hand."""
    return Bundle(
        strategy=strategy,
        model=model,
        cluster=cluster,
        strategy_id=strategy_id(strategy, model, cluster),
        plan_id=plan_id(plan, cluster),
    )
