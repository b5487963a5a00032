"""Features of a model and a cluster, which are the same for all strategies of a study.

They are ratios, so that a model twice as large on links twice as fast has the same features. Seconds are shares of the
bound, the time that no exact strategy can beat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from autosync.plan.bound import bound
from autosync.plan.bound_terms import rates_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ITEM_BYTES, ModelSpec
from autosync.specs.uplinks import nodes_behind

CONTEXT = (
    "model.compute",
    "model.forward",
    "model.update",
    "model.variables",
    "model.largest",
    "model.embeddings",
    "model.touched",
    "model.linear",
    "cluster.wire",
    "cluster.workers",
    "cluster.ranks_on_node",
    "cluster.servers",
    "cluster.slowest",
    "cluster.oversubscription",
    "cluster.round",
    "cluster.native_round",
    "cluster.ranks_on_processor",
)
"""The names of the features, in their order."""


class Scales(NamedTuple):
    """The seconds by which other seconds are divided."""

    bound: float
    compute: float


def scales_of(model: ModelSpec, cluster: ClusterSpec) -> Scales:
    """Return the scales of a study. For a model without times they come from its bytes alone."""
    found = max(bound(model, cluster, rates=rates_of(cluster)).seconds, 1e-9)
    return Scales(bound=found, compute=max(model.step_seconds, 1e-6 * found))


def context_features(model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> Mapping[str, float]:
    """Return the features by name, in the order of `CONTEXT`."""
    scales = scales_of(model, cluster)
    found = {**_of_model(model, scales), **_of_cluster(model, cluster, costs, scales)}
    assert tuple(found) == CONTEXT, "every feature has its name"
    return found


def _of_model(model: ModelSpec, scales: Scales) -> dict[str, float]:
    total = model.num_bytes
    timeline = model.timeline
    forward = model.accumulation_steps * sum(segment.seconds for segment in timeline.forward)
    update = sum(segment.seconds for segment in timeline.optimizer)
    embeddings = [variable for variable in model.variables if variable.kind == "embedding"]
    touched = sum((v.touched_rows or 0.0) * v.shape[1] * ITEM_BYTES[v.dtype] for v in embeddings)
    return {
        "model.compute": scales.compute / scales.bound,
        "model.forward": forward / scales.compute,
        "model.update": update / scales.compute,
        "model.variables": math.log2(len(model.variables)),
        "model.largest": max(variable.num_bytes for variable in model.variables) / total,
        "model.embeddings": sum(variable.num_bytes for variable in embeddings) / total,
        "model.touched": touched / total,
        "model.linear": sum(v.num_bytes for v in model.variables if v.kind == "linear") / total,
    }


def _of_cluster(model: ModelSpec, cluster: ClusterSpec, costs: Costs, scales: Scales) -> dict[str, float]:
    workers = [node for node in cluster.nodes if node.role == "worker"]
    rates = [min(node.bandwidth_out, node.bandwidth_in) for node in workers]
    uplinks = [
        sum(cluster.nodes[node].bandwidth_out for node in behind) / rack.uplink_out
        for rack, behind in zip(cluster.racks, nodes_behind(cluster), strict=True)
    ]
    processors = 0.0 if costs.num_processors is None else len(cluster.ranks) / costs.num_processors
    return {
        "cluster.wire": model.num_bytes / min(rates) / scales.bound,
        "cluster.workers": math.log2(cluster.num_workers),
        "cluster.ranks_on_node": cluster.num_workers / len(workers),
        "cluster.servers": (len(cluster.nodes) - len(workers)) / len(workers),
        "cluster.slowest": min(rates) * len(rates) / sum(rates),
        "cluster.oversubscription": max(uplinks, default=0.0),
        "cluster.round": costs.round_seconds / scales.bound,
        "cluster.native_round": costs.native_round_seconds / scales.bound,
        "cluster.ranks_on_processor": processors,
    }
