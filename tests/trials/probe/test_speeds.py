"""Speeds of nodes: the slowest rank of a node counts, and nodes that are equally fast have the same speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster
from autosync.trials.probe import probe
from autosync.trials.probe.request import RankAnswer
from autosync.trials.probe.speeds import ALIKE, alike, speeds_of, with_speeds


def _cluster() -> ClusterSpec:
    nodes = (
        Node(name="a", host="10.0.0.1", devices=2, bandwidth_out=1e8, bandwidth_in=1e8),
        Node(name="b", host="10.0.0.2", devices=1, bandwidth_out=1e8, bandwidth_in=1e8, compute=9.0),
        Node(name="s", host="10.0.0.3", role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8),
    )
    return ClusterSpec(name="three", nodes=nodes, launcher="ssh")


def test_the_slowest_rank_of_a_node_counts() -> None:
    seconds = (1.0, 2.0, 0.5, None)
    answers = [RankAnswer(rank=rank, pass_seconds=one) for rank, one in enumerate(seconds)]
    speeds = speeds_of(_cluster(), answers)
    assert speeds == {"a": 1.0, "b": 4.0}
    assert [node.compute for node in with_speeds(_cluster(), speeds).nodes] == [1.0, 4.0, 1.0]


def test_a_server_before_the_workers_counts_as_none() -> None:
    cluster = _cluster()
    first = replace(cluster, nodes=(cluster.nodes[2], *cluster.nodes[:2]))
    seconds = (None, 1.0, 2.0, 0.5)
    answers = [RankAnswer(rank=rank, pass_seconds=one) for rank, one in enumerate(seconds)]
    assert speeds_of(first, answers) == {"a": 1.0, "b": 4.0}


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8))
def test_the_order_of_speeds_is_kept(values: list[float]) -> None:
    speeds = {str(number): value for number, value in enumerate(values)}
    found = alike(speeds)
    assert found["0"] == 1.0
    for one, first in speeds.items():
        for other, second in speeds.items():
            if first <= second:
                assert found[one] <= found[other]
            if first * ALIKE**2 < second * 0.98:
                assert found[one] < found[other]


def test_small_differences_are_none() -> None:
    assert set(alike({"a": 1.0, "b": 0.98, "c": 1.02}).values()) == {1.0}


def test_a_very_slow_node_has_a_speed_too() -> None:
    assert alike({"a": 1.0, "b": 0.00423}) == {"a": 1.0, "b": 0.00423}


def test_nodes_that_were_declared_alike_may_have_different_speeds() -> None:
    cluster = load_cluster("4-hosts")
    names = [node.name for node in cluster.nodes]
    found = with_speeds(cluster, dict(zip(names, (1.0, 1.0, 0.5, 0.5), strict=True)))
    assert [node.compute for node in found.nodes] == [1.0, 1.0, 0.5, 0.5]
    assert found.alike == (tuple(names[:2]), tuple(names[2:]))


def test_nodes_that_are_one_machine_are_refused() -> None:
    with pytest.raises(InputError, match="all its nodes are this machine"):
        probe(load_cluster("4-hosts"), task="model.py")
