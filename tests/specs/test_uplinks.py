"""Racks may stand in pods: which racks data leaves and enters on its way between nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autosync.specs.cluster import ClusterSpec, describe
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.uplinks import crossed, ends_of_uplink, nodes_behind, racks_around, reach

FILE = """
schema: autosync.cluster/1
name: pods
racks:
  - {name: pod, uplink: 40 Gbit/s}
  - {name: r1, uplink: 20 Gbit/s, rack: pod}
  - {name: r2, uplink: 10 Gbit/s, rack: pod}
  - {name: r3, uplink: 10 Gbit/s}
nodes:
  - {name: a, bandwidth: 10 Gbit/s, rack: r1, host: h1}
  - {name: b, bandwidth: 10 Gbit/s, rack: r2, host: h2}
  - {name: c, bandwidth: 10 Gbit/s, rack: pod, host: h3}
  - {name: d, bandwidth: 10 Gbit/s, rack: r3, host: h4}
  - {name: e, bandwidth: 10 Gbit/s, host: h5}
launcher: ssh
"""
POD, R1, R2, R3 = range(4)
A, B, C, D, E = range(5)


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterSpec:
    path = tmp_path / "pods.yaml"
    path.write_text(FILE, "utf-8")
    return load_cluster(path)


def test_racks_around_and_nodes_behind(cluster: ClusterSpec) -> None:
    assert racks_around(cluster) == ((POD, R1), (POD, R2), (POD, -1), (R3, -1), (-1, -1))
    assert nodes_behind(cluster) == ((A, B, C), (A,), (B,), (D,))


@pytest.mark.parametrize(
    ("source", "destination", "left", "entered"),
    [
        (A, B, (R1,), (R2,)),
        (A, C, (R1,), ()),
        (C, B, (), (R2,)),
        (A, D, (POD, R1), (R3,)),
        (E, A, (), (POD, R1)),
        (C, E, (POD,), ()),
        (A, A, (), ()),
    ],
)
def test_data_passes_the_uplinks_between(
    cluster: ClusterSpec, source: int, destination: int, left: tuple[int, ...], entered: tuple[int, ...]
) -> None:
    assert crossed(cluster, source, destination) == (left, entered)


@pytest.mark.parametrize(
    ("place", "nodes", "to_nodes", "gigabits"),
    [
        # Out of r1, which passes 20 of what the others could receive.
        ((POD, R1), (B, C, D, E), True, 20),
        # Just above r1, they could receive all.
        ((POD, -1), (B, C, D, E), True, 40),
        # All nodes of the pod, of which r2 passes all that b sends.
        ((POD, -1), (A, B, C), False, 30),
        ((-1, -1), (D, E), True, 20),
        # The pod passes 25 to a, b and c.
        ((-1, -1), (A, B, C), True, 25),
        ((R3, -1), (A, B, C, D), True, 20),
        ((R3, -1), (), True, 0),
    ],
)
def test_links_and_uplinks_limit_what_passes(
    cluster: ClusterSpec, place: tuple[int, int], nodes: tuple[int, ...], to_nodes: bool, gigabits: float
) -> None:
    narrow = replace(cluster.racks[POD], uplink_in=25 * 1.25e8)
    cluster = replace(cluster, racks=(narrow, *cluster.racks[1:]))
    assert reach(cluster, place, nodes, to_nodes=to_nodes) == gigabits * 1.25e8


def test_ends_of_uplinks(cluster: ClusterSpec) -> None:
    assert ends_of_uplink(cluster, R1) == ((POD, R1), (POD, -1))
    assert ends_of_uplink(cluster, POD) == ((POD, -1), (-1, -1))
    assert ends_of_uplink(cluster, R3) == ((R3, -1), (-1, -1))


def test_pods_are_written_shown_and_part_of_the_fingerprint(cluster: ClusterSpec, tmp_path: Path) -> None:
    save_cluster(tmp_path / "again.yaml", cluster)
    again = load_cluster(tmp_path / "again.yaml")
    assert again == cluster
    lines = describe(cluster).splitlines()
    assert "rack  uplink out  uplink in  in rack" in lines
    assert "r1    20 Gbit/s   20 Gbit/s  pod" in lines
    (tmp_path / "flat.yaml").write_text(FILE.replace("uplink: 20 Gbit/s, rack: pod", "uplink: 20 Gbit/s"), "utf-8")
    assert load_cluster(tmp_path / "flat.yaml").fingerprint() != cluster.fingerprint()
