"""Random models and clusters: odd enough to find mistakes, and the same for the same seed."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from tests.helpers.random_specs import clusters, models, random_cluster, random_model


@given(models(max_variables=5, dtypes=("float32",)))
def test_models_keep_to_their_limits(model: ModelSpec) -> None:
    assert 1 <= len(model.variables) <= 5
    assert {variable.dtype for variable in model.variables} == {"float32"}
    assert {v.name for v in model.variables} == {name for s in model.timeline.backward for name in s.variables}


@given(clusters(max_workers=4, backends=("nccl",)))
def test_clusters_keep_to_their_limits(cluster: ClusterSpec) -> None:
    assert 1 <= cluster.num_workers <= 4
    assert cluster.backend == "nccl"
    assert len({node.name for node in cluster.nodes}) == len(cluster.nodes)
    assert all((node.devices == 0) == (node.role == "server") for node in cluster.nodes)
    names = [name for members in cluster.alike for name in members]
    assert len(names) == len(set(names)), "a node is in one class"
    for members in cluster.alike:
        same = {(n.role, n.devices, n.bandwidth_in, n.bandwidth_out) for n in cluster.nodes if n.name in members}
        assert len(same) == 1, members


@pytest.mark.parametrize("draw", [random_model, random_cluster])
def test_the_same_seed_gives_the_same(draw: Callable[[random.Random], Any]) -> None:
    assert [draw(random.Random(seed)) for seed in range(20)] == [draw(random.Random(seed)) for seed in range(20)]


def test_all_oddities_occur() -> None:
    drawn = [random_model(random.Random(seed)) for seed in range(300)]
    variables = [variable for model in drawn for variable in model.variables]
    assert {variable.kind for variable in variables} == {"dense", "embedding", "linear"}
    assert any(variable.shape == () for variable in variables)
    assert any(1 in variable.shape for variable in variables)
    assert {variable.sparse for variable in variables if variable.kind == "embedding"} == {True, False}
    assert any(variable.aliases for variable in variables)
    assert any(len({variable.dtype for variable in model.variables}) > 1 for model in drawn)
    assert any(not model.optimizer.elementwise for model in drawn)
    assert any(model.clip_norm for model in drawn)
    assert any([v.ready for v in model.variables] != list(range(len(model.variables)))[::-1] for model in drawn)

    clusters_drawn = [random_cluster(random.Random(seed)) for seed in range(300)]
    assert {cluster.num_workers for cluster in clusters_drawn} == {1, 2, 3, 4, 5, 6}
    assert {cluster.backend for cluster in clusters_drawn} == {"gloo", "nccl"}
    assert any(len(set(map(len, cluster.worker_groups()))) > 1 for cluster in clusters_drawn)
    assert any(cluster.nodes[0].role == "server" for cluster in clusters_drawn)
    assert any(cluster.racks for cluster in clusters_drawn)
    assert any(cluster.alike for cluster in clusters_drawn)
