"""Measured errors: intervals contain the promised share, and say where nothing was measured."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.scaling.errors import ends_of, has_equal_links, measured_errors, shipped_errors
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster


@given(st.lists(st.floats(-1, 1), max_size=60), st.sampled_from([0.5, 0.8, 0.9]))
def test_an_interval_ends_at_errors(errors: list[float], level: float) -> None:
    found = ends_of(errors, level)
    assert (found is None) == ((1 - level) / 2 * (len(errors) + 1) < 1 - 1e-6)
    if found is not None:
        assert found.low in errors
        assert found.high in errors
        assert found.low <= found.high


def test_nineteen_errors_are_enough() -> None:
    assert ends_of(range(18)) is None
    assert ends_of(range(19)) == (0, 18)


def test_an_interval_holds_its_share_of_further_errors() -> None:
    rng = random.Random(1)
    held = []
    for _ in range(1000):
        low, high = ends_of([rng.gauss(0, 1) for _ in range(39)]) or (0, 0)
        held.append(low <= rng.gauss(0, 1) <= high)
    assert 0.87 < sum(held) / len(held) < 0.93


@pytest.mark.parametrize("simulator", ["timeline", "analytical"])
@pytest.mark.parametrize("cluster", ["2-hosts", "4-hosts-2-racks"])
def test_the_shipped_errors_give_intervals(simulator: str, cluster: str) -> None:
    for subject in ("stock DDP", "fastest"):
        found = shipped_errors().ends(simulator, subject, load_cluster(cluster))
        assert found is not None
        assert -0.3 < found.low < 0 < found.high < 0.4


def test_errors_of_another_simulator_are_unknown() -> None:
    assert shipped_errors().ends("crystal ball", "fastest", load_cluster("2-hosts")) is None


def test_the_shipped_errors_are_those_of_todays_simulators() -> None:
    # Otherwise measure them again: python tools/measure_prediction_errors.py
    assert measured_errors() is not None


def test_a_cluster_like_the_measured_ones_is_not_beyond() -> None:
    assert shipped_errors().beyond(load_cluster("4-hosts")) == []


def test_what_was_never_measured_is_told() -> None:
    errors, cluster = shipped_errors(), load_cluster("8-hosts")
    assert errors.beyond(cluster) == []
    more = replace(cluster.nodes[0], name="one-more", host="one-more")
    assert errors.beyond(replace(cluster, nodes=(*cluster.nodes, more))) == ["more than 8 nodes"]
    fast = tuple([replace(node, bandwidth_out=1e10) for node in load_cluster("4-hosts").nodes])
    far = replace(load_cluster("4-hosts"), nodes=fast, alike=(), launcher="ssh", backend="nccl")
    assert errors.beyond(far) == ["links outside 150 Mbit/s to 1 Gbit/s", "backend nccl", "nodes that are not emulated"]


@pytest.mark.parametrize(
    ("name", "is_equal"),
    [("4-hosts", True), ("2-hosts-2-ranks", True), ("4-hosts-one-slow", False), ("4-hosts-2-racks", False)],
)
def test_equal_links(name: str, is_equal: bool) -> None:
    cluster: ClusterSpec = load_cluster(name)
    assert has_equal_links(cluster) == is_equal


def test_errors_are_finite() -> None:
    assert all(math.isfinite(error) for group in shipped_errors().groups for error in group.errors)
