"""The picture of a cluster: every node and link, and a meter for each load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autosync.pictures.cluster_picture import MAX_NODES, ClusterLoad, cluster_picture
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.links import Direction, inside_name, interface_name, uplink_name
from tests.helpers.rack_clusters import UNLIKE

See = Callable[[str], Any]


def _both(named: Callable[[str, Direction], str], what: str) -> list[str]:
    """The names of both directions of a link."""
    return [named(what, "out"), named(what, "in")]


def test_each_load_has_a_meter_on_each_link(see: See) -> None:
    cluster = load_cluster("4-hosts-2-racks")
    links = [name for node in cluster.nodes for name in _both(interface_name, node.name)]
    links += [name for rack in cluster.racks for name in _both(uplink_name, rack.name)]
    loads = [
        ClusterLoad(name="stock DDP", shares=dict.fromkeys(links, 0.9)),
        ClusterLoad(name="the winner", shares=dict.fromkeys(links, 0.4)),
    ]
    seen = see(cluster_picture(cluster, loads, title="racks", subtitle="emulated"))
    assert {"racks", "emulated", "spine", "stock DDP", "the winner"} <= set(seen.texts)
    assert {node.name for node in cluster.nodes} <= set(seen.texts)
    assert {rack.name for rack in cluster.racks} <= set(seen.texts)
    assert seen.texts.count("90%") == len(links)
    assert seen.texts.count("40%") == len(links)
    assert seen.count("rect")["frame"] == 2 * len(links)


def test_pods_stand_between_the_spine_and_racks(see: See) -> None:
    cluster = UNLIKE["a host in a pod without a rack"]
    seen = see(cluster_picture(cluster, title="pods"))
    assert {"spine", "pod", "x", "y", *(node.name for node in cluster.nodes)} <= set(seen.texts)
    # Under the spine: one pod and a rack beside it; under the pod: a rack and a host.
    flat = replace(cluster, racks=tuple(replace(rack, rack=None) for rack in cluster.racks))
    assert seen.height > see(cluster_picture(flat, title="flat")).height


def test_links_without_a_known_load_have_no_meter(see: See) -> None:
    cluster = load_cluster("4-hosts")
    load = ClusterLoad(name="stock DDP", shares={interface_name("host-0", "out"): 1.7})
    seen = see(cluster_picture(cluster, [load], title="four"))
    assert seen.count("rect")["frame"] == 1
    assert seen.texts.count("100%") == 1
    assert seen.count("rect")["frame"] == 1
    assert see(cluster_picture(cluster, title="four")).count("rect")["frame"] == 0


def test_the_inside_of_a_node_is_told(see: See) -> None:
    cluster = load_cluster("2-hosts-2-ranks")
    loads = [
        ClusterLoad(name="stock DDP", shares={inside_name("host-0"): 0.12}),
        ClusterLoad(name="ours", shares={inside_name("host-0"): 0.05}),
    ]
    seen = see(cluster_picture(cluster, loads, title="two"))
    assert "inside 12% → 5%" in seen.texts
    assert seen.texts.count("2 ranks") == 2


@pytest.mark.parametrize("name", sorted(shipped_clusters()))
def test_every_shipped_cluster_can_be_drawn(name: str, see: See) -> None:
    seen = see(cluster_picture(load_cluster(name), title=name))
    assert name in seen.texts


def test_a_large_cluster_says_what_it_leaves_out(see: See) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(MAX_NODES + 3))
    seen = see(cluster_picture(ClusterSpec(name="large", nodes=nodes, launcher="ssh"), title="large"))
    assert f"n{MAX_NODES - 1}" in seen.texts
    assert f"n{MAX_NODES}" not in seen.texts
    assert "and 3 more nodes" in seen.texts
