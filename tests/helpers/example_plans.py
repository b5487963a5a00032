"""A small example of every synchroniser, codec and kind of server, for whoever must get all of them right.

One model of three variables (a table, a linear layer, a bias) on clusters of two to six ranks. `examples` has them by
name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.shapes.trees import TreeShare
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

ADAM = OptimizerSpec(name="Adam", state_slots=2)
SGD = OptimizerSpec(name="SGD", sparse=True)
ALL = ("table", "linear", "bias")
UNEVEN = (TreeShare(up=(0, 0, 1), weight=3), TreeShare(up=(1, 1, 0), down=(1, 1, 1)))
"""Trees by which rank 0 owns three quarters, rank 1 a quarter and rank 2 nothing."""
WEIGHT = Variable(name="w", shape=(4, 6), kind="linear", use=0, ready=0, factor_rows=2)


def cluster_of(*devices: int) -> ClusterSpec:
    """Nodes with so many ranks each; 0 is a node that only serves."""
    nodes = tuple(
        Node(
            name=f"n{index}",
            host=f"n{index}",
            role="worker" if count else "server",
            devices=count,
            bandwidth_out=1e8,
            bandwidth_in=1e8,
        )
        for index, count in enumerate(devices)
    )
    return ClusterSpec(name="small", nodes=nodes)


def model_of(*, optimizer: OptimizerSpec = ADAM, clip_norm: float | None = None) -> ModelSpec:
    """A table, a linear layer and a bias."""
    variables = (
        Variable(name="table", shape=(6, 3), kind="embedding", use=0, ready=2, touched_rows=2.5, max_touched_rows=4),
        Variable(name="linear", shape=(4, 5), kind="linear", use=1, ready=1, factor_rows=2),
        Variable(name="bias", shape=(5,), use=2, ready=0),
    )
    timeline = Timeline(device="none", source="computed", forward=(), backward=())
    return ModelSpec(name="small", clip_norm=clip_norm, optimizer=optimizer, variables=variables, timeline=timeline)


def model_with(*variables: Variable, clip_norm: float | None = None) -> ModelSpec:
    """A model of the given variables, trained by plain SGD."""
    return ModelSpec(
        name="small",
        clip_norm=clip_norm,
        optimizer=SGD,
        variables=variables,
        timeline=Timeline(device="none", source="computed", forward=(), backward=()),
    )


def plan_of(
    synchroniser: Synchroniser,
    *devices: int,
    codec: Codec | None = None,
    variable: Variable = WEIGHT,
    overlap: Overlap = "backward",
    clip_norm: float | None = None,
    slice_bytes: int | None = None,
) -> Plan:
    """The plan of one variable in one message."""
    message = Message(parts=(variable.name,), synchroniser=synchroniser, codec=codec, slice_bytes=slice_bytes)
    strategy = Strategy(overlap=overlap, messages=(message,))
    return lower(strategy, model_with(variable, clip_norm=clip_norm), cluster_of(*devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A strategy with the model and the cluster that it is for."""

    strategy: Strategy
    model: ModelSpec
    cluster: ClusterSpec

    def plan(self) -> Plan:
        """The plan."""
        return lower(self.strategy, self.model, self.cluster)


def example(
    synchroniser: Synchroniser,
    *devices: int,
    overlap: Overlap = "backward",
    codec: Codec | None = None,
    names: Sequence[str] = ALL,
    optimizer: OptimizerSpec = ADAM,
    clip_norm: float | None = None,
) -> Example:
    """Each of the named variables in a message and lane of its own; the others all-reduced as one."""
    messages = [
        Message(parts=(name,), synchroniser=synchroniser, codec=codec, lane=lane) for lane, name in enumerate(names)
    ]
    others = tuple(name for name in ALL if name not in names)
    if others:
        messages.append(Message(parts=others, synchroniser=AllReduce()))
    return Example(
        strategy=Strategy(overlap=overlap, messages=tuple(messages)),
        model=model_of(optimizer=optimizer, clip_norm=clip_norm),
        cluster=cluster_of(*devices),
    )


def examples(overlap: Overlap) -> Mapping[str, Example]:
    """Every synchroniser, its variants, and every way to encode, by name."""
    rows, int8 = ("table",), Int8(error_feedback=True)
    at = ParameterServer

    def make(synchroniser: Synchroniser, *devices: int, **settings: Any) -> Example:
        return example(synchroniser, *devices, overlap=overlap, **settings)

    return {
        "all_reduce": make(AllReduce(), 1, 1, 1),
        "all_reduce of all": _together(make(AllReduce(), 1, 1, 1)),
        "all_reduce clipped": make(AllReduce(), 1, 1, 1, clip_norm=1.0),
        "hierarchical, equal nodes": make(AllReduce(hierarchical=True), 2, 2),
        "hierarchical, unequal nodes": make(AllReduce(hierarchical=True), 3, 2, 1),
        "int8": make(AllReduce(), 1, 1, 1, codec=int8),
        "cast": make(AllReduce(topology="tree"), 1, 1, 1, codec=Cast()),
        "power_sgd": make(AllReduce(), 1, 1, 1, codec=PowerSGD(rank=2), names=("table", "linear")),
        "server": make(at(server="n1"), 1, 1, 1),
        "server apart": make(at(server="n2"), 1, 1, 0),
        "server apart, clipped": make(at(server="n2"), 1, 1, 0, clip_norm=1.0),
        "server, one variable, clipped": make(at(server="n1"), 1, 1, names=("linear",), clip_norm=1.0),
        "server, proxies": make(at(server="n2", local_proxy=True), 2, 2, 0),
        "server among workers, proxies": make(at(server="n0", local_proxy=True), 2, 2),
        "server, workers update": make(at(server="n1", update="worker"), 1, 1, 1),
        "server, workers update, proxies": make(at(server="n2", update="worker", local_proxy=True), 2, 2, 0),
        "server, workers update, cast": make(at(server="n1", update="worker"), 1, 1, 1, codec=Cast()),
        "server, workers update, int8": make(at(server="n1", update="worker"), 1, 1, 1, codec=int8),
        "server, stale": make(at(server="n1", staleness=2), 1, 1, 1),
        "server apart, stale": make(at(server="n2", staleness=1), 1, 1, 0),
        "server, stale, int8": make(at(server="n1", staleness=2), 1, 1, 1, codec=int8),
        "rows": make(SparseGather(), 1, 1, 1, names=rows, optimizer=SGD),
        "rows at server": make(at(server="n1", sparse=True), 1, 1, 1, names=rows, optimizer=SGD),
        "rows at server apart": make(at(server="n2", sparse=True), 1, 1, 0, names=rows, optimizer=SGD),
        "rows at server, workers update": make(
            at(server="n2", sparse=True, update="worker"), 1, 1, 0, names=rows, optimizer=SGD
        ),
        "rows at server, stale": make(at(server="n1", sparse=True, staleness=2), 1, 1, names=rows, optimizer=SGD),
        "factors": make(SufficientFactors(), 1, 1, 1, names=("linear",)),
        "sharded": make(Sharded(), 1, 1, 1),
        "sharded, clipped": make(Sharded(), 1, 1, 1, clip_norm=1.0),
        "sharded over trees": make(Sharded(topology="trees", trees=UNEVEN), 1, 1, 1, clip_norm=1.0),
        "periodic": make(Periodic(every=2), 1, 1, 1),
        "periodic, clipped": make(Periodic(every=2), 1, 1, 1, names=("table", "linear"), clip_norm=1.0),
        "periodic, outer": make(Periodic(every=2, outer=OuterOptimizer()), 1, 1, 1),
    }


def _together(made: Example) -> Example:
    return replace(made, strategy=replace(made.strategy, messages=(Message(parts=ALL),)))
