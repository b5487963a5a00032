"""The ways of an all-reduce that `collective_fit.py` compares, as strategies of a model with one gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from autosync.plan.bound_terms import rates_of
from autosync.plan.bundling import bundle_of_plan
from autosync.plan.lowering import lower
from autosync.plan.traffic import amortised_traffic
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce

FITTED, LEVELS, GLOO = "fitted", "levels", "gloo"
MOST_TIMES = 1.6
"""A topology is measured if its busiest link needs at most so many times as long as that of another one."""


class Way(NamedTuple):
    """One way of an all-reduce: its bundle, and the seconds that its busiest link needs at the probed rates."""

    bundle: Bundle
    busiest_link_seconds: float


def one_gradient(num_bytes: int) -> ModelSpec:
    """Return a model with one gradient and no compute, so that a step is an all-reduce."""
    passing = (Segment(module="", seconds=0.0, variables=("weight",)),)
    return ModelSpec(
        name="one-gradient",
        optimizer=OptimizerSpec(name="SGD"),
        variables=(Variable(name="weight", shape=(num_bytes // 4,), use=0, ready=0),),
        timeline=Timeline(device="cpu", source="computed", forward=passing, backward=passing),
    )


def ways(model: ModelSpec, cluster: ClusterSpec) -> dict[str, Way]:
    """Return all ways by name, the fitted trees first."""
    found = {}
    for name, strategy in _strategies(model, cluster):
        plan = lower(strategy, model, cluster)
        found[name] = Way(bundle_of_plan(plan, strategy, model, cluster), _busiest_link_seconds(plan, cluster))
    return found


def of_before(names: Iterable[str]) -> list[str]:
    """Return the ways that know nothing of the cluster's racks and rates."""
    return [name for name in names if name not in (FITTED, LEVELS)]


def too_slow(found: dict[str, Way]) -> dict[str, str]:
    """Return the topologies that another one is certain to beat, with the reason. gloo's ring is always measured."""
    before = of_before(found)
    least = min(found[name].busiest_link_seconds for name in before)
    return {
        name: f"its busiest link needs {found[name].busiest_link_seconds / least:.2f} times as long as another's"
        for name in before
        if name != GLOO and found[name].busiest_link_seconds > MOST_TIMES * least
    }


def _strategies(model: ModelSpec, cluster: ClusterSpec) -> Iterator[tuple[str, Strategy]]:
    yield FITTED, _alone(AllReduce.fitted(cluster, num_bytes=model.num_bytes))
    if cluster.racks:
        yield LEVELS, _alone(AllReduce(topology="levels"))
    yield GLOO, _alone(AllReduce())
    yield "ring", _alone(AllReduce(topology="ring"))
    yield "tree", _alone(AllReduce(topology="tree"))
    yield "halving_doubling", _alone(AllReduce(topology="halving_doubling"))
    if any(node.devices > 1 for node in cluster.nodes):
        yield "hierarchical", _alone(AllReduce(topology="ring", hierarchical=True))
    yield "star", build_preset("ps", model, cluster)
    yield "servers", build_preset("ps_partitioned", model, cluster)


def _alone(synchroniser: AllReduce) -> Strategy:
    return Strategy(messages=(Message(parts=("weight",), synchroniser=synchroniser),))


def _busiest_link_seconds(plan: Plan, cluster: ClusterSpec) -> float:
    traffic, rates = amortised_traffic(plan, cluster), rates_of(cluster)
    out, into = np.array([rates.nodes[node.name] for node in cluster.nodes]).T
    found = [traffic.node_out / out, traffic.node_in / into]
    if cluster.racks:
        rack_out, rack_in = np.array([rates.racks[rack.name] for rack in cluster.racks]).T
        found += [traffic.rack_out / rack_out, traffic.rack_in / rack_in]
    return float(max(one.max() for one in found))
