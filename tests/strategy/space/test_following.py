"""Steps draw all-reduces and shards over trees where links differ, and draw what they always did elsewhere."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.representation import Strategy
from autosync.strategy.shapes.fitting import fitted_shares
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.sharded import Sharded

RACKS, SPEEDS, EQUAL = "4-hosts-2-racks", "6-hosts-3-speeds", "4-hosts"
SHARDS = Limits(synchronisers=("sharded",))


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("ncf_small")


def ways(strategy: Strategy) -> set[tuple[str, str]]:
    return {(message.synchroniser.kind, str(message.synchroniser.route)) for message in strategy.messages}


@pytest.mark.parametrize(("name", "shapes"), [(RACKS, {"levels", "trees"}), (SPEEDS, {"trees"}), (EQUAL, set[str]())])
def test_shards_go_over_trees_where_links_differ(model: ModelSpec, name: str, shapes: set[str]) -> None:
    space, rng = Space(model=model, cluster=load_cluster(name), limits=SHARDS), random.Random(1)
    drawn = [space.sample(rng) for _ in range(80)]
    assert all(not space.problems(one) for one in drawn)
    routes = {route for one in drawn for _, route in ways(one)}
    assert routes == {"native", "ring", *shapes} | ({"halving_doubling"} if name != SPEEDS else set())


def test_one_step_has_all_reduces_and_uneven_shards_over_trees(model: ModelSpec) -> None:
    space, rng = Space(model=model, cluster=load_cluster(SPEEDS)), random.Random(2)
    found = Counter(way for _ in range(400) for way in {frozenset(ways(space.sample(rng)))})
    both = {("all_reduce", "trees"), ("sharded", "trees")}
    assert sum(count for way, count in found.items() if both <= way) > 0


def test_drawn_shards_are_those_of_the_links(model: ModelSpec) -> None:
    cluster = load_cluster(SPEEDS)
    space, rng = Space(model=model, cluster=cluster, limits=SHARDS), random.Random(1)
    drawn = {message.synchroniser for _ in range(80) for message in space.sample(rng).messages}
    fitted = Sharded(topology="trees", trees=fitted_shares(cluster, takes_servers=False))
    assert {one for one in drawn if one.written_trees} == {fitted}
    owned = Counter[int]()
    for share in fitted.trees:
        owned[share.root] += share.weight
    rates = [cluster.nodes[rank.node].bandwidth_out for rank in cluster.ranks]
    assert owned[rates.index(max(rates))] > 2 * owned[rates.index(min(rates))]


def test_few_steps_follow_links(model: ModelSpec) -> None:
    space, rng = Space(model=model, cluster=load_cluster(SPEEDS), limits=SHARDS), random.Random(3)
    share = sum("trees" in {route for _, route in ways(space.sample(rng))} for _ in range(300)) / 300
    assert 0.25 < share < 0.45


@pytest.mark.parametrize("kind", [AllReduce, Sharded])
def test_nccl_equal_links_and_limits_have_none(kind: type[Synchroniser]) -> None:
    speeds, racks = load_cluster(SPEEDS), load_cluster(RACKS)
    plain = tuple(one for one in Limits().topologies if one not in ("levels", "trees"))
    cases = [
        (load_cluster(EQUAL), Limits()),
        (_on_nccl(speeds), Limits()),
        (speeds, Limits(topologies=plain)),
        (racks, Limits(topologies=plain)),
    ]
    assert [list(kind.link_variants(cluster, limits)) for cluster, limits in cases] == [[], [], [], []]


def test_a_space_of_nothing_but_trees_draws_them(model: ModelSpec) -> None:
    limits = Limits(synchronisers=("sharded",), topologies=("trees",))
    space = Space(model=model, cluster=load_cluster(SPEEDS), limits=limits)
    assert ways(space.sample(random.Random(0))) == {("sharded", "trees")}


def _on_nccl(cluster: ClusterSpec) -> ClusterSpec:
    return replace(cluster, backend="nccl")
