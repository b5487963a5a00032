"""The clusters that ship with the package are what their names say."""

from pathlib import Path

import pytest

from autosync.specs.cluster import ClusterSpec, symmetry_classes
from autosync.specs.cluster_file import load_cluster, shipped_clusters

GIGABIT = 1e9 / 8

SHAPES = {
    # name: (worker ranks of each node, rates out in Gbit/s, server-only nodes, classes)
    "local-2": ([2], [10], 0, 1),
    "2-hosts": ([1] * 2, [1] * 2, 0, 1),
    "4-hosts": ([1] * 4, [0.5] * 4, 0, 1),
    "8-hosts": ([1] * 8, [1] * 8, 0, 1),
    "4-hosts-uneven": ([1] * 4, [1] * 4, 0, 3),
    "8-hosts-one-slow": ([1] * 8, [1] * 7 + [0.3], 0, 2),
    "4-hosts-2-ranks": ([2] * 4, [1] * 4, 0, 1),
    "4-hosts-2-servers": ([1] * 4, [0.5] * 4 + [1] * 2, 2, 2),
    "2-hosts-2-ranks": ([2] * 2, [0.5] * 2, 0, 1),
    "3-hosts-3-speeds": ([1] * 3, [1, 0.6, 0.4], 0, 3),
    "4-hosts-one-slow": ([1] * 4, [1] * 3 + [0.4], 0, 2),
    "4-hosts-2-racks": ([1] * 4, [1] * 4, 0, 2),
    "4-hosts-asymmetric": ([1] * 4, [0.5, 0.5, 1, 1], 0, 2),
    "6-hosts-2-speeds": ([1] * 6, [1] * 3 + [0.5] * 3, 0, 2),
    "8-hosts-slow-links": ([1] * 8, [0.5] * 8, 0, 1),
    "6-hosts-3-speeds": ([1] * 6, [1, 1, 0.5, 0.5, 0.25, 0.25], 0, 3),
    "16-hosts-2-racks": ([1] * 16, [1] * 16, 0, 2),
    "5-hosts-2-racks": ([1] * 5, [1] * 5, 0, 2),
    "5-hosts-slow-uplink": ([1] * 5, [0.5] * 5, 0, 2),
    "6-hosts-3-racks": ([1] * 6, [0.5] * 6, 0, 3),
}


def test_every_shipped_cluster_is_held_by_this_test() -> None:
    assert shipped_clusters().keys() == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_shipped_clusters_are_what_they_say(name: str) -> None:
    cluster = load_cluster(name)
    ranks, rates, num_servers, num_classes = SHAPES[name]
    assert cluster.name == name
    assert [len(group) for group in cluster.worker_groups()] == ranks
    assert [node.bandwidth_out / GIGABIT for node in cluster.nodes] == pytest.approx(rates)
    sends_as_it_receives = [node.bandwidth_in == node.bandwidth_out for node in cluster.nodes]
    assert not any(sends_as_it_receives) if name == "4-hosts-asymmetric" else all(sends_as_it_receives)
    assert sum(node.role == "server" for node in cluster.nodes) == num_servers
    assert len(symmetry_classes(cluster)) == num_classes
    assert cluster.launcher == ("local" if name == "local-2" else "testbed")
    assert cluster.backend == "gloo"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("16-hosts-2-racks", [8, 8]),
        ("4-hosts-2-racks", [2, 2]),
        ("5-hosts-2-racks", [3, 2]),
        ("5-hosts-slow-uplink", [3, 2]),
        ("6-hosts-3-racks", [3, 2, 1]),
    ],
)
def test_the_uplinks_are_slower_than_the_hosts_behind_them(name: str, sizes: list[int]) -> None:
    cluster: ClusterSpec = load_cluster(name)
    for rack, size in zip(cluster.racks, sizes, strict=True):
        hosts = [node for node in cluster.nodes if node.rack == rack.name]
        assert len(hosts) == size
        assert rack.uplink_out < sum(node.bandwidth_out for node in hosts)
        assert rack.uplink_in < sum(node.bandwidth_in for node in hosts)


@pytest.mark.parametrize("path", shipped_clusters().values(), ids=lambda path: path.stem)
def test_each_file_opens_with_what_it_is_for(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
