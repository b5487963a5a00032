"""Makes a bundle from a strategy, a model and a cluster, with the strategy's id and the plan's id."""

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
    """Return the bundle of a strategy that is legal for this model and cluster; lowers it to compute the plan's id."""
    return bundle_of_plan(lower(strategy, model, cluster), strategy, model, cluster)


def bundle_of_plan(plan: Plan, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    """Return the bundle of a strategy that has already been lowered to this plan."""
    return Bundle(
        strategy=strategy,
        model=model,
        cluster=cluster,
        strategy_id=strategy_id(strategy, model, cluster),
        plan_id=plan_id(plan, cluster),
    )
