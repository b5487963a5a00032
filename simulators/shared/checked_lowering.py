"""From a strategy to its plan, as simulators ask for it: one for another model is refused with the rule it breaks."""

from __future__ import annotations

from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy


def lowered(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Plan:
    """The plan of a strategy that is legal, or made for another model: then a `DoesNotApplyError`."""
    try:
        return lower(strategy, model, cluster)
    except KeyError:
        # Looking for what is wrong takes as long as the lowering itself: only where something is.
        legality.check(strategy, model, cluster)
        raise
