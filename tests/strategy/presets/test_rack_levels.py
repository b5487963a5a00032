"""rack_levels: the buckets of ddp_cap by levels, or over fitted trees, on clusters with several racks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.errors import DoesNotApplyError, InputError
from autosync.plan.lowering import lower
from autosync.plan.traffic import plan_traffic
from autosync.plan.types import Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.shapes.fitting import fitted_shares
from autosync.strategy.synchronisers.all_reduce import AllReduce


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("resnet18")


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    return load_cluster("4-hosts-2-racks")


def test_it_has_the_buckets_of_ddp_cap(model: ModelSpec, cluster: ClusterSpec) -> None:
    plain = build_preset("ddp_cap", model, cluster, cap_bytes="4 MB")
    found = build_preset("rack_levels", model, cluster, cap_bytes="4 MB")
    assert [message.parts for message in found.messages] == [message.parts for message in plain.messages]
    assert {message.synchroniser for message in found.messages} == {AllReduce(topology="levels")}


def test_uplinks_carry_the_data_once(model: ModelSpec, cluster: ClusterSpec) -> None:
    """A ring among four hosts in two racks sends it one and a half times."""
    crossed = {}
    for name in ("rack_levels", "ddp_cap"):
        traffic = plan_traffic(lower(build_preset(name, model, cluster), model, cluster), cluster)
        crossed[name] = traffic.rack_out.tolist()
    assert crossed["rack_levels"] == [model.num_bytes] * 2
    assert crossed["ddp_cap"] == pytest.approx([1.5 * model.num_bytes] * 2)


def test_fitted_trees(model: ModelSpec, cluster: ClusterSpec) -> None:
    found = build_preset("rack_levels", model, cluster, fitted=True)
    assert {m.synchroniser for m in found.messages} == {AllReduce(topology="trees", trees=fitted_shares(cluster))}


@pytest.mark.parametrize("name", ["4-hosts", "local-2", "4-hosts-2-ranks"])
def test_it_needs_several_racks(model: ModelSpec, name: str) -> None:
    with pytest.raises(DoesNotApplyError, match="levels need workers in several racks"):
        build_preset("rack_levels", model, load_cluster(name))


def test_fitted_trees_need_tags(model: ModelSpec, cluster: ClusterSpec) -> None:
    with pytest.raises(DoesNotApplyError, match="tagged messages, which nccl has not"):
        build_preset("rack_levels", model, replace(cluster, backend="nccl"), fitted=True)


def test_without_tags_levels_are_collectives_within_racks_and_between_them(
    model: ModelSpec, cluster: ClusterSpec
) -> None:
    on_nccl = replace(cluster, backend="nccl")
    plan = lower(build_preset("rack_levels", model, on_nccl), model, on_nccl)
    transfers = {(one.collective, one.algorithm, one.groups) for one in plan.operations if isinstance(one, Transfer)}
    within, between = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert transfers == {
        ("reduce_scatter", "native", within),
        ("all_reduce", "native", between),
        ("all_gather", "native", within),
    }


def test_fitted_is_true_or_false(model: ModelSpec, cluster: ClusterSpec) -> None:
    with pytest.raises(InputError, match="true or false"):
        build_preset("rack_levels", model, cluster, fitted="yes")
