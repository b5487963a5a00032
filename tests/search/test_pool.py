"""A pool has one model on one cluster, even if other models or clusters have the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Record
from autosync.errors import DocumentError, InputError, Problem
from autosync.search.candidates import STOCK_DDP, known_candidates
from autosync.search.pool import read_pool
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, model: ModelSpec, cluster: ClusterSpec) -> list[Record]:
    """What the dataset `.` has, to be filled; specs of the model and of two clusters are there."""
    records: list[Record] = []
    specs = [model_spec(model), cluster_spec(cluster), cluster_spec(_slower(cluster))]

    class Told:
        def __init__(self, _path: object) -> None:
            pass

        def records(self, _problem: object) -> list[Record]:
            return records

        def specs(self) -> object:
            return specs

    monkeypatch.setattr("autosync.search.pool.Dataset", Told)
    return records


def _slower(cluster: ClusterSpec) -> ClusterSpec:
    """Of the same name."""
    nodes = tuple(replace(node, bandwidth_out=node.bandwidth_out / 2) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def test_clusters_of_one_name_are_not_mixed(
    told: list[Record], model: ModelSpec, cluster: ClusterSpec, make_record: Callable[..., Record]
) -> None:
    ours = next(known_candidates(model, cluster, lambda _: True))
    here, elsewhere = (cluster_spec(one).spec_id for one in (cluster, _slower(cluster)))
    told += [replace(make_record(n, one, 0.1), cluster_spec=here) for n, one in enumerate((STOCK_DDP, ours))]
    pool = read_pool(".")
    assert (pool.model, pool.cluster) == (model, cluster)
    assert set(pool.records) == {STOCK_DDP.strategy_id, ours.strategy_id}
    told.append(replace(make_record(2, ours, 0.3), cluster_spec=elsewhere))
    with pytest.raises(InputError, match="records of 2 such models on clusters"):
        read_pool(".")


def test_without_stock_ddp_there_is_nothing_to_hold_others_against(
    told: list[Record], model: ModelSpec, cluster: ClusterSpec, make_record: Callable[..., Record]
) -> None:
    told.append(make_record(0, next(known_candidates(model, cluster, lambda _: True)), 0.1))
    with pytest.raises(InputError, match="has no record of stock DDP"):
        read_pool(".")


def test_damaged_records_are_not_left_out_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged:
        def __init__(self, _path: object) -> None:
            pass

        def records(self, problem: Callable[[Problem], None]) -> list[Record]:
            problem(Problem(what="a record without a time", rule="a record has a measurement or a failure"))
            return []

    monkeypatch.setattr("autosync.search.pool.Dataset", Damaged)
    with pytest.raises(DocumentError, match="a record without a time"):
        read_pool(".")
