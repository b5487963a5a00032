"""Nodes are changed and racks are added, and nodes that are alike stay so as far as the rules allow."""

from dataclasses import replace
from pathlib import Path

from autosync.specs.cluster import Rack
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.cluster_racks import RackProposal, with_nodes, with_racks


def test_racks_are_added_and_classes_are_split(tmp_path: Path) -> None:
    cluster = load_cluster("8-hosts")
    names = [node.name for node in cluster.nodes]
    rack = Rack(name="rack-1", uplink_out=6e7, uplink_in=1.2e8)
    found = with_racks(cluster, [RackProposal(rack=rack, members=(names[1], names[5]))])
    assert found.racks == (rack,)
    assert [node.name for node in found.nodes if node.rack == "rack-1"] == [names[1], names[5]]
    assert sorted(found.alike) == sorted(
        [(names[1], names[5]), tuple(name for name in names if name not in (names[1], names[5]))]
    )
    save_cluster(tmp_path / "racks.yaml", found)
    assert load_cluster(tmp_path / "racks.yaml") == found


def test_a_node_without_its_like_is_in_no_class() -> None:
    cluster = load_cluster("4-hosts")
    names = [node.name for node in cluster.nodes]
    rack = Rack(name="rack-1", uplink_out=6e7, uplink_in=6e7)
    found = with_racks(cluster, [RackProposal(rack=rack, members=tuple(names[:3]))])
    assert found.alike == (tuple(names[:3]),)


def test_without_racks_nothing_changes() -> None:
    cluster = load_cluster("4-hosts")
    assert with_racks(cluster, []) == cluster


def test_nodes_that_agree_stay_alike() -> None:
    cluster = load_cluster("8-hosts")
    names = [node.name for node in cluster.nodes]
    nodes = [replace(node, compute=0.5 if node.name in names[:3] else 1.0) for node in cluster.nodes]
    nodes[7] = replace(nodes[7], bandwidth_in=1e6)
    found = with_nodes(cluster, nodes)
    assert found.nodes == tuple(nodes)
    assert sorted(found.alike) == sorted([tuple(names[:3]), tuple(names[3:7])])
