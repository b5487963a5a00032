"""Lowers strategies for simulators: a strategy for another model is refused with the rule that it breaks."""

from __future__ import annotations

from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy


def lowered(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """Return the plan of a strategy; raise a `DoesNotApplyError` if it was made for another model."""
    try:
        return lower(strategy, model, cluster)
    except KeyError:
        # The check takes as long as the lowering, so it runs only after an error.
        legality.check(strategy, model, cluster)
        raise
