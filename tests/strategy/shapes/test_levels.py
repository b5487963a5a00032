"""The shape `levels`: data passes each uplink as seldom as can be, and all nodes of a rack work alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from autosync.plan.traffic import Traffic, transfer_traffic
from autosync.plan.types import Algorithm
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.strategy.shapes.levels import MAX_UNITS, levels, num_level_shares, worker_racks
from autosync.strategy.shapes.pairing import nearest_first
from tests.helpers.rack_clusters import pods_of
from tests.helpers.transfers import plain_transfer

ELEMENTS = 2**10 * 3**5 * 5**2 * 7


def cluster_of(racks: Sequence[Sequence[int]], *, loose: int = 0) -> ClusterSpec:
    """Racks of nodes with so many ranks each, and `loose` nodes without a rack."""
    homes = [(f"r{number}", devices) for number, rack in enumerate(racks) for devices in rack]
    nodes = [
        Node(name=f"n{index}", host=f"n{index}", devices=devices, bandwidth_out=1e8, bandwidth_in=1e8, rack=home)
        for index, (home, devices) in enumerate([*homes, *[(None, 1)] * loose])
    ]
    uplinks = tuple(Rack(name=f"r{number}", uplink_out=1e8, uplink_in=1e8) for number in range(len(racks)))
    return ClusterSpec(name="test", nodes=tuple(nodes), racks=uplinks)


def traffic_of(cluster: ClusterSpec, algorithm: Algorithm | None = None) -> Traffic:
    """The bytes on each link of an all-reduce by levels, or by another algorithm."""
    everyone = tuple(range(cluster.num_workers))
    transfer = plain_transfer(
        "all_reduce",
        algorithm or levels(cluster),
        nearest_first(everyone, cluster) if algorithm == "halving_doubling" else everyone,
        ELEMENTS,
        item_bytes=1,
    )
    return transfer_traffic(transfer, cluster)


@pytest.mark.parametrize("sizes", [(3, 2), (2, 2), (1, 4), (5, 7), (3, 3, 3), (4, 2, 1), (2,) * 4, (8,) * 8], ids=str)
def test_uplinks_carry_the_least_and_the_nodes_of_a_rack_the_same(sizes: tuple[int, ...]) -> None:
    cluster = cluster_of([[1] * size for size in sizes])
    found = traffic_of(cluster)
    num_racks = len(sizes)
    least = 2 * (num_racks - 1) / num_racks * ELEMENTS
    np.testing.assert_allclose(found.rack_out, least, rtol=1e-12)
    np.testing.assert_allclose(found.rack_in, least, rtol=1e-12)
    first = 0
    for size in sizes:
        # A node sends its own sum up, and passes results on for the part of the data in which it leads its rack.
        expected = (2 * (size - 1) + least / ELEMENTS) / size * ELEMENTS
        np.testing.assert_allclose(found.node_out[first : first + size], expected, rtol=1e-12)
        np.testing.assert_allclose(found.node_in[first : first + size], expected, rtol=1e-12)
        first += size


def test_racks_of_three_and_two_written_out() -> None:
    shape = levels(cluster_of([[1, 1, 1], [1, 1]]))
    assert str(shape) == "levels"
    assert [(share.up, share.down, share.weight) for share in shape.shares] == [
        ((0, 0, 0, 0, 3), (), 2),
        ((1, 1, 1, 1, 3), (), 1),
        ((1, 4, 1, 4, 4), (), 1),
        ((2, 2, 4, 4, 4), (), 2),
    ]


def test_the_page_says_how_often_data_passes_an_uplink() -> None:
    page = (Path(__file__).parents[3] / "docs" / "shapes.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| ([0-9.]+) \|$", page, re.MULTILINE))
    cluster = cluster_of([[1, 1, 1], [1, 1]])
    names: tuple[Algorithm, ...] = ("ring", "tree", "halving_doubling")
    assert told.keys() == {"levels", *names}
    for algorithm in (levels(cluster), *names):
        found = traffic_of(cluster, algorithm)
        often = float(told[str(algorithm)])
        np.testing.assert_allclose(found.rack_out, often * ELEMENTS, rtol=1e-6)
        np.testing.assert_allclose(found.rack_in, often * ELEMENTS, rtol=1e-6)


def test_ranks_of_a_node_meet_there_and_speak_for_it_in_turn() -> None:
    cluster = cluster_of([[2, 2], [2, 2]])
    for number, share in enumerate(levels(cluster).shares):
        for node in cluster.worker_groups():
            speaker = node[number % 2]
            others = [rank for rank in node if rank != speaker]
            assert [share.up[rank] for rank in others] == [speaker] * len(others)
    assert traffic_of(cluster).node_within.min() > 0


def test_nodes_without_a_rack_are_racks_by_themselves() -> None:
    cluster = cluster_of([[1, 1]], loose=2)
    assert worker_racks(cluster) == (((0,), (1,)), ((2,),), ((3,),))
    found = traffic_of(cluster)
    np.testing.assert_allclose(found.rack_out, 4 / 3 * ELEMENTS, rtol=1e-12)


@pytest.mark.parametrize("pods", [((2, 2), (2, 2)), ((3, 2), (2,)), ((2, 2), (1, 1), (2,)), ((4,) * 4,) * 2], ids=str)
def test_pods_send_the_least_between_them(pods: tuple[tuple[int, ...], ...]) -> None:
    cluster = pods_of(*pods)
    found, num_pods = traffic_of(cluster), len(pods)
    least = 2 * (num_pods - 1) / num_pods * ELEMENTS
    np.testing.assert_allclose(found.rack_out[:num_pods], least, rtol=1e-9)
    np.testing.assert_allclose(found.rack_in[:num_pods], least, rtol=1e-9)
    # Racks of a pod do the same work.
    first = num_pods
    for pod in pods:
        np.testing.assert_allclose(found.rack_out[first : first + len(pod)], found.rack_out[first], rtol=1e-9)
        first += len(pod)


def test_servers_take_no_part() -> None:
    nodes = [
        Node(name=name, host=name, role=role, devices=devices, bandwidth_out=1e8, bandwidth_in=1e8, rack=rack)
        for name, role, devices, rack in (("a", "worker", 1, "x"), ("s", "server", 0, "x"), ("b", "worker", 1, "y"))
    ]
    racks = tuple(Rack(name=name, uplink_out=1e8, uplink_in=1e8) for name in "xy")
    cluster = ClusterSpec(name="test", nodes=tuple(nodes), racks=racks)
    assert worker_racks(cluster) == (((0,),), ((1,),))
    assert levels(cluster).num_ranks == 2


@pytest.mark.parametrize("sizes", [(3, 2), (3, 4, 5, 7), (16, 15, 13, 11, 9, 7), (8,) * 8])
def test_the_number_of_shares_is_known_beforehand_and_units_are_few(sizes: tuple[int, ...]) -> None:
    cluster = cluster_of([[1] * size for size in sizes])
    shape = levels(cluster)
    assert len(shape.shares) == num_level_shares(cluster)
    assert shape.num_units <= MAX_UNITS


def test_a_division_too_fine_is_rounded() -> None:
    sizes = (16, 15, 13, 11, 9, 7)
    found = traffic_of(cluster_of([[1] * size for size in sizes]))
    np.testing.assert_allclose(found.rack_out, 2 * 5 / 6 * ELEMENTS, rtol=0.01)
    assert found.node_out[:16].max() <= 1.1 * found.node_out[:16].min()
