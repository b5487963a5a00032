"""Shards and parts in proportion to what links carry: `sharded` with fitted, and `ps_partitioned` by rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.traffic import plan_traffic
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from tests.helpers.rack_clusters import UNLIKE


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("vit_mini")


def busiest_seconds(preset: str, model: ModelSpec, cluster: ClusterSpec, **options: Any) -> float:
    """How long the busiest interface or uplink needs for the bytes of a step."""
    traffic = plan_traffic(lower(build_preset(preset, model, cluster, **options), model, cluster), cluster)
    num_bytes = np.concatenate((traffic.node_out, traffic.node_in, traffic.rack_out, traffic.rack_in))
    rates = [
        *(node.bandwidth_out for node in cluster.nodes),
        *(node.bandwidth_in for node in cluster.nodes),
        *(rack.uplink_out for rack in cluster.racks),
        *(rack.uplink_in for rack in cluster.racks),
    ]
    return float((num_bytes / rates).max())


@pytest.mark.parametrize("name", ["three speeds", "one slow host", "two racks, uneven", "spare servers"])
def test_fitted_shards_are_never_slower(model: ModelSpec, name: str) -> None:
    cluster = UNLIKE[name]
    fitted, equal = (busiest_seconds("sharded", model, cluster, fitted=one) for one in (True, False))
    assert fitted <= equal * 1.01


@pytest.mark.parametrize(("name", "gain"), [("4-hosts-one-slow", 1.4), ("6-hosts-3-speeds", 1.6)])
def test_fitted_shards_follow_the_links(model: ModelSpec, name: str, gain: float) -> None:
    cluster = load_cluster(name)
    assert busiest_seconds("sharded", model, cluster) > gain * busiest_seconds("sharded", model, cluster, fitted=True)


@pytest.mark.parametrize(("name", "gain"), [("4-hosts-one-slow", 1.2), ("6-hosts-3-speeds", 1.25), ("4-hosts", 0.98)])
def test_parts_on_servers_follow_the_links(model: ModelSpec, name: str, gain: float) -> None:
    cluster = load_cluster(name)
    by_rate = busiest_seconds("ps_partitioned", model, cluster, parts="by_rate")
    assert busiest_seconds("ps_partitioned", model, cluster) > gain * by_rate


def test_fitted_shards_need_tags_and_company(model: ModelSpec) -> None:
    cluster = load_cluster("4-hosts")
    with pytest.raises(DoesNotApplyError, match="tagged messages, which nccl has not"):
        build_preset("sharded", model, replace(cluster, backend="nccl"), fitted=True)
    alone = replace(cluster, nodes=cluster.nodes[:1], alike=())
    with pytest.raises(DoesNotApplyError, match="shards need two workers or more"):
        build_preset("sharded", model, alone, fitted=True)
