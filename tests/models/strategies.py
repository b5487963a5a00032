"""The strategies that every model is trained under, by name, and by what training each of them can be tried."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from training import PLAIN_SGD, USUAL, WHOLE_STEPS, Training
from zoo import Entry

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A strategy of the suite. `build` gives it for a model, or says why it has none."""

    name: str
    training: Training
    build: Callable[[ModelSpec, ClusterSpec], Strategy]


def cluster_of(num_ranks: int) -> ClusterSpec:
    """A node a rank, all on this machine."""
    nodes = tuple(
        Node(name=f"n{index}", host="localhost", devices=1, bandwidth_out=1e8, bandwidth_in=1e8)
        for index in range(num_ranks)
    )
    return ClusterSpec(name="suite", nodes=nodes)


def sampled(number: int) -> Named:
    """One of all exact ones: that which the model's name and a number draw."""

    def build(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
        return Space(model=model, cluster=cluster).sample(random.Random(f"{model.name} {number}"))

    return Named(name="sampled" if number == 1 else f"sampled {number}", training=USUAL, build=build)


def _factors(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Factors of whatever has some, few bytes or not."""
    linear = [variable.name for variable in model.variables if variable.kind == "linear"]
    if not linear:
        raise DoesNotApplyError(f"{model.name} has no linear variable", rule="factors are of linear variables")
    others = tuple(variable.name for variable in model.variables if variable.kind != "linear")
    alone = [Message(parts=(name,), synchroniser=SufficientFactors()) for name in linear]
    return Strategy(messages=(*alone, *([Message(parts=others)] if others else [])))


def _rows(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    if not any(variable.sparse for variable in model.variables):
        raise DoesNotApplyError(f"{model.name} has no sparse gradients", rule="rows are of embeddings that have")
    return build_preset("parallax", model, cluster)


STOCK = Named(name="stock", training=USUAL, build=lambda model, cluster: build_preset("ddp", model, cluster))
SERVERS = Named(
    name="servers", training=USUAL, build=lambda model, cluster: build_preset("ps_partitioned", model, cluster)
)
SHARDS = Named(
    name="shards",
    training=USUAL,
    build=lambda model, cluster: build_preset("sharded", model, cluster, cap_bytes="256 KiB"),
)
FORWARD = Named(
    name="forward overlap", training=USUAL,
    build=lambda model, cluster: build_preset("bytescheduler", model, cluster, slice_bytes="128 KiB"),
)  # fmt: skip
FACTORS = Named(name="factors", training=WHOLE_STEPS, build=_factors)
ROWS = Named(name="rows", training=PLAIN_SGD, build=_rows)

LOSSY = Named(name="lossy", training=USUAL, build=lambda model, cluster: build_preset("bf16", model, cluster))
"""Gradients rounded to bfloat16: what the suite must find to be too far off. It is no part of it."""


def strategies_of(entry: Entry) -> tuple[Named, ...]:
    """The six of a model: rows where its gradients are sparse, factors everywhere else."""
    return STOCK, SERVERS, SHARDS, FORWARD, sampled(1), ROWS if entry.sparse else FACTORS


def training_of(named: Named, entry: Entry) -> Training:
    """How a model is trained under a strategy.

    A compiled one is trained in float32: hooks divide its graph, and what is then computed otherwise differs by a
    rounding of what it is computed in. Roundings of bfloat16 would hide whatever else is wrong.
    """
    if entry.is_compiled:
        return WHOLE_STEPS
    return PLAIN_SGD if entry.sparse else named.training
