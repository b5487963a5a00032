"""The space has levels where the cluster has racks, and fitted trees where they may be faster than a ring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.fitting import fitted_shares
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from tests.helpers.rack_clusters import racks_of

RACKS = "4-hosts-2-racks"


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("squeezenet")


def shapes_of(strategies: Iterator[Strategy]) -> set[str]:
    return {message.synchroniser.route or "" for strategy in strategies for message in strategy.messages}


def variants_of(cluster: ClusterSpec, limits: Limits) -> set[str]:
    return {str(one.route) for one in AllReduce.variants(cluster, limits)}


def test_samples_and_mutants_have_levels_and_trees(model: ModelSpec) -> None:
    space, rng = Space(model=model, cluster=load_cluster(RACKS)), random.Random(1)
    drawn = [space.sample(rng) for _ in range(60)]
    assert {"levels", "trees"} < shapes_of(iter(drawn))
    mutant = Strategy(messages=drawn[0].messages, partitions=drawn[0].partitions)
    seen: set[str] = set()
    for _ in range(300):
        mutant = space.mutate(mutant, rng)
        assert space.problems(mutant) == []
        seen |= shapes_of(iter([mutant]))
    assert {"levels", "trees", "native", "ring"} < seen


def test_drawn_trees_are_those_of_the_clusters_rates(model: ModelSpec) -> None:
    cluster = load_cluster(RACKS)
    space, rng = Space(model=model, cluster=cluster), random.Random(1)
    drawn = [message.synchroniser for _ in range(60) for message in space.sample(rng).messages]
    trees = {one.trees for one in drawn if isinstance(one, AllReduce) and one.trees}
    assert trees == {fitted_shares(cluster)}


def test_trees_take_spare_servers_where_workers_are_alike(model: ModelSpec) -> None:
    """A ring of workers leaves the links of servers idle."""
    cluster = load_cluster("4-hosts-2-servers")
    space, rng = Space(model=model, cluster=cluster), random.Random(1)
    drawn = [space.sample(rng) for _ in range(200)]
    assert not any(map(space.problems, drawn))
    trees = {share for one in drawn for message in one.messages for share in message.synchroniser.written_trees}
    assert trees == set(fitted_shares(cluster))
    assert any(parent >= cluster.num_workers for share in trees for parent in share.up)


def test_fitted_to_links_that_are_alike_is_a_ring() -> None:
    assert AllReduce.fitted(load_cluster("4-hosts")) == AllReduce(topology="ring")
    spare = load_cluster("4-hosts-2-servers")
    assert AllReduce.fitted(spare, num_bytes=1e8).trees == fitted_shares(spare, num_bytes=1e8)
    # Few bytes go among the workers alone.
    assert AllReduce.fitted(spare, num_bytes=1e5) == AllReduce(topology="ring")


def test_ranks_of_a_node_speak_for_it_in_turn() -> None:
    found = AllReduce.fitted(load_cluster("4-hosts-2-ranks")).trees
    assert len({share.root for share in found}) == len(found) > 1


def test_clusters_without_racks_and_nccl_have_none(model: ModelSpec) -> None:
    assert not {"levels", "trees"} & variants_of(load_cluster("4-hosts"), Limits())
    assert {"levels", "trees"} < variants_of(load_cluster(RACKS), Limits())


@pytest.mark.parametrize("left_out", ["levels", "trees"])
def test_limits_may_leave_them_out(left_out: str) -> None:
    cluster = load_cluster(RACKS)
    topologies = tuple(one for one in Limits().topologies if one != left_out)
    limits = Limits(topologies=topologies)
    assert variants_of(cluster, limits) == set(topologies)
    shape = next(one for one in AllReduce.variants(cluster, Limits()) if one.route == left_out)
    (outside,) = shape.outside(limits)
    assert outside == (("topology",), left_out, topologies)


def test_large_clusters_of_unlike_racks_have_trees_without_levels(model: ModelSpec) -> None:
    """Levels would have more shares there than are legal."""
    cluster = racks_of(*range(1, 17))
    space = Space(model=model, cluster=cluster)
    routes = {one.synchroniser.route for settings in space.choices.dense.values() for one in settings}
    assert "trees" in routes
    assert "levels" not in routes
    strategy = build_preset("rack_levels", model, cluster, fitted=True)
    assert space.contains(strategy)
    assert plan_id(lower(strategy, model, cluster), cluster)


def test_trees_are_not_fitted_where_the_backend_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = replace(load_cluster(RACKS), backend="nccl")
    monkeypatch.setattr("autosync.strategy.shapes.fitting.fitted_shares", None)
    assert "trees" not in variants_of(cluster, Limits())
