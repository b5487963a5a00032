"""Cluster files: what they may say, what a mistake costs, and that what is written reads back the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import documents
from autosync.errors import DocumentError, InputError
from autosync.specs.cluster import ClusterSpec, Node, Rack, symmetry_classes
from autosync.specs.cluster_file import (
    build_cluster,
    dump_cluster,
    load_cluster,
    parse_cluster,
    save_cluster,
    shipped_clusters,
)
from autosync.specs.cost_profiles import CostChoice, profile_names

MEGABIT = 1e6 / 8


def _parse(text: str) -> ClusterSpec:
    return parse_cluster(documents.parse_document(f"schema: autosync.cluster/1\n{text}", file="lab.yaml"))


def _mistakes(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        _parse(text)
    return str(caught.value).splitlines()


def test_the_smallest_file() -> None:
    assert _parse("nodes: [{name: a, bandwidth: 500 Mbit/s}]") == ClusterSpec(
        name="lab",
        nodes=(Node(name="a", host="a", bandwidth_out=500 * MEGABIT, bandwidth_in=500 * MEGABIT),),
        launcher="local",
        backend="gloo",
    )


def test_every_field() -> None:
    text = """
name: every field
launcher: ssh
backend: nccl
racks:
  - {name: east, uplink: 10 Gbit/s}
  - {name: west, uplink_out: 5 Gbit/s, uplink_in: 10 Gbit/s}
nodes:
  - name: a
    host: 10.0.0.1
    devices: 4
    bandwidth_out: 1 Gbit/s
    bandwidth_in: 2 Gbit/s
    intra_bandwidth: 25 GB/s
    rack: east
    memory: 16 GB
  - {name: b, host: 10.0.0.2, devices: 4, bandwidth: 1 Gbit/s, rack: west}
  - {name: s, role: server, devices: 0, bandwidth: 1 Gbit/s}
  - {name: t, role: server, bandwidth: 1 Gbit/s}
alike: [[s, t]]
"""
    assert _parse(text) == ClusterSpec(
        name="every field",
        launcher="ssh",
        backend="nccl",
        racks=(
            Rack(name="east", uplink_out=1.25e9, uplink_in=1.25e9),
            Rack(name="west", uplink_out=0.625e9, uplink_in=1.25e9),
        ),
        nodes=(
            Node(
                name="a",
                host="10.0.0.1",
                devices=4,
                bandwidth_out=0.125e9,
                bandwidth_in=0.25e9,
                intra_bandwidth=25e9,
                rack="east",
                memory_bytes=16 * 10**9,
            ),
            Node(name="b", host="10.0.0.2", devices=4, bandwidth_out=0.125e9, bandwidth_in=0.125e9, rack="west"),
            Node(name="s", host="s", role="server", devices=0, bandwidth_out=0.125e9, bandwidth_in=0.125e9),
            Node(name="t", host="t", role="server", devices=0, bandwidth_out=0.125e9, bandwidth_in=0.125e9),
        ),
        alike=(("s", "t"),),
    )


def test_counted_nodes_are_numbered_and_alike() -> None:
    cluster = _parse("nodes: [{name: x, bandwidth: 1 Gbit/s}, {name: h, count: 3, bandwidth: 1 Gbit/s}]")
    assert [(node.name, node.host) for node in cluster.nodes] == [
        ("x", "x"),
        ("h-0", "h-0"),
        ("h-1", "h-1"),
        ("h-2", "h-2"),
    ]
    assert symmetry_classes(cluster) == ((0,), (1, 2, 3))


def test_counted_nodes_take_hosts_from_a_stem_or_a_list() -> None:
    cluster = _parse(
        """
nodes:
  - {name: a, count: 2, host: rack1-node, bandwidth: 1 Gbit/s}
  - {name: b, count: 2, hosts: [10.0.0.7, 10.0.0.9], bandwidth: 1 Gbit/s}
"""
    )
    assert [node.host for node in cluster.nodes] == ["rack1-node-0", "rack1-node-1", "10.0.0.7", "10.0.0.9"]


def test_a_count_of_one_is_one_node_in_no_class() -> None:
    cluster = _parse("nodes: [{name: h, count: 1, bandwidth: 1 Gbit/s}]")
    assert [node.name for node in cluster.nodes] == ["h-0"]
    assert cluster.alike == ()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("nodes: []", ["lab.yaml:2: nodes: the cluster has no worker (at least one node has the role worker)"]),
        ("name: x", ["lab.yaml:1: nodes: is missing (nodes is required)"]),
        (
            "nodes:\n- {name: a, bandwith: 1 Gbit/s}",
            [
                (
                    "lab.yaml:3: nodes[0].bandwith: unknown key"
                    " (known: name, host, hosts, count, role, devices, bandwidth, bandwidth_out, bandwidth_in,"
                    " intra_bandwidth, rack, memory, compute, intra_total, nics, storage); did you mean 'bandwidth'?"
                )
            ],
        ),
        (
            "nodes:\n- name: a",
            [
                (
                    "lab.yaml:3: nodes[0].bandwidth: is missing"
                    " (bandwidth for both directions, or bandwidth_out and bandwidth_in)"
                )
            ],
        ),
        (
            "nodes:\n- name: a\n  bandwidth_out: 1 Gbit/s",
            [
                (
                    "lab.yaml:3: nodes[0].bandwidth_in: is missing"
                    " (bandwidth for both directions, or bandwidth_out and bandwidth_in)"
                )
            ],
        ),
        (
            "nodes:\n- name: a\n  bandwidth: 1 Gbit/s\n  bandwidth_in: 2 Gbit/s",
            [
                (
                    "lab.yaml:5: nodes[0].bandwidth_in: given beside bandwidth"
                    " (bandwidth for both directions, or bandwidth_out and bandwidth_in)"
                )
            ],
        ),
        (
            "nodes:\n- name: a\n  bandwidth: 500",
            ["lab.yaml:4: nodes[0].bandwidth: 500 is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')"],
        ),
        (
            "nodes:\n- name: a\n  bandwidth: [1]\n  memory: much",
            [
                "lab.yaml:4: nodes[0].bandwidth: [1] is no rate (write a rate such as '500 Mbit/s' or '25 GB/s')",
                "lab.yaml:5: nodes[0].memory: 'much' is no size (write a size such as '4 MB' or '256 KiB')",
            ],
        ),
        (
            "nodes:\n- name: h\n  count: 0\n  bandwidth: 1 Gbit/s",
            ["lab.yaml:4: nodes[0].count: 0 nodes (count is 1 to 4096)"],
        ),
        (
            "nodes:\n- {name: a, bandwidth: 1 Gbit/s}\n- {name: h, count: 4096, bandwidth: 1 Gbit/s}",
            ["lab.yaml:2: nodes: 4097 nodes (at most 4096 nodes)"],
        ),
        (
            "nodes:\n- name: h\n  count: 2\n  hosts: [a]\n  bandwidth: 1 Gbit/s",
            ["lab.yaml:5: nodes[0].hosts: 1 hosts for 2 nodes (one host for each counted node)"],
        ),
        (
            "nodes:\n- name: h\n  hosts: [a]\n  bandwidth: 1 Gbit/s",
            [
                (
                    "lab.yaml:4: nodes[0].hosts: a list of hosts for one node"
                    " (hosts goes with count, host with a single node)"
                )
            ],
        ),
        (
            "nodes:\n- name: h\n  count: 1\n  host: b\n  hosts: [a]\n  bandwidth: 1 Gbit/s",
            ["lab.yaml:6: nodes[0].hosts: given beside host (either host or hosts)"],
        ),
        (
            "nodes:\n- {name: h, count: 3, bandwidth: 1 Gbit/s}\n- {name: h-1, bandwidth: 1 Gbit/s}",
            ["lab.yaml:4: nodes[1].name: 'h-1' is taken (each node has a name of its own)"],
        ),
        (
            "nodes:\n- name: h\n  count: 3\n  rack: r\n  bandwidth: 1 Gbit/s",
            ["lab.yaml:5: nodes[0].rack: unknown rack 'r' (known: none)"],
        ),
        (
            "nodes:\n- {name: h, count: 2, bandwidth: 1 Gbit/s}\n- {name: a, bandwidth: 1 Gbit/s}\nalike:\n- [a, h-0]",
            [
                (
                    "lab.yaml:6: alike[0][1]: 'h-0' is in a class already"
                    " (a node is named in one class, once; nodes that are counted are a class already)"
                )
            ],
        ),
        (
            "nodes:\n- {name: a, bandwidth: 1 Gbit/s}\n- {name: b, bandwidth: 2 Gbit/s}\nalike:\n- [a, b]",
            [
                (
                    "lab.yaml:6: alike[0][1]: 'b' is not like 'a': they differ in bandwidth_out, bandwidth_in"
                    " (alike nodes agree in role, devices, rates, interfaces, rack, memory and compute)"
                )
            ],
        ),
        (
            "nodes:\n- {name: h, count: 2, bandwidth: 1 Gbit/s}\n- {name: h, count: 2, bandwidth: 1 Gbit/s}",
            [
                "lab.yaml:4: nodes[1].name: 'h-0' is taken (each node has a name of its own)",
                "lab.yaml:4: nodes[1].name: 'h-1' is taken (each node has a name of its own)",
            ],
        ),
    ],
)
def test_each_mistake_has_its_line(text: str, messages: list[str]) -> None:
    assert _mistakes(text) == messages


def test_all_mistakes_of_a_file_are_found_together_in_order_of_lines() -> None:
    text = """launcher: slrum
racks:
- {name: east, uplink: 5 GB}
nodes:
- name: a
  bandwidth: fast
  rack: est
- name: s
  role: server
  devices: 2
  bandwidth_out: 1 Gbit/s
alike:
- [a, c]
"""
    found = [message.split(": ")[:2] for message in _mistakes(text)]
    assert found == [
        ["lab.yaml:2", "launcher"],
        ["lab.yaml:4", "racks[0].uplink"],
        ["lab.yaml:7", "nodes[0].bandwidth"],
        ["lab.yaml:8", "nodes[0].rack"],
        ["lab.yaml:9", "nodes[1].bandwidth_in"],
        ["lab.yaml:11", "nodes[1].devices"],
        ["lab.yaml:14", "alike[0][1]"],
    ]


def test_fields_without_a_file_have_paths_and_no_lines() -> None:
    with pytest.raises(InputError) as caught:
        build_cluster({"nodes": [{"name": "a", "bandwidth": "1 Gbit/s", "rack": "r"}]})
    assert str(caught.value) == "nodes[0].rack: unknown rack 'r' (known: none)"


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("schema: autosync.model/1\nname: x\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"c\.yaml:1: .*no cluster file"):
        load_cluster(path)


def test_a_bare_name_is_a_shipped_cluster_unless_it_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_cluster("4-hosts").name == "4-hosts"
    Path("4-hosts").write_text(json.dumps(dump_cluster(load_cluster("8-hosts"))), encoding="utf-8")
    assert load_cluster("4-hosts").name == "8-hosts"


def test_an_unknown_name_lists_the_shipped_clusters() -> None:
    with pytest.raises(InputError) as caught:
        load_cluster("9-hosts")
    message = str(caught.value)
    assert message.startswith("unknown cluster file or shipped cluster '9-hosts' (known: ")
    assert all(name in message for name in shipped_clusters())
    assert message.endswith("did you mean '8-hosts'?")


def test_a_missing_file_is_no_shipped_cluster(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        load_cluster(tmp_path / "4-hosts")
    with pytest.raises(DocumentError, match="cannot be read"):
        load_cluster("no-such-cluster.yaml")


_NAMES = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True)
_RATES = st.floats(min_value=1e-3, max_value=1e15)
_SIZES = st.integers(min_value=1, max_value=2**50)


@st.composite
def _costs(draw: st.DrawFn) -> CostChoice:
    values: dict[str, st.SearchStrategy[float | None]] = {
        "latency": st.floats(0, 60),
        "flow_limit": st.none() | _RATES,
        "payload_share": st.floats(0.01, 1.0),
        "encode_rate": _RATES,
        "socket_size": st.integers(0, 2**50).map(float),
        "server_cores": st.integers(1, 4096).map(float),
    }
    names = draw(st.lists(st.sampled_from(sorted(values)), max_size=3, unique=True))
    profile = draw(st.sampled_from([None, *profile_names()]))
    return CostChoice(profile=profile, figures=tuple([(name, draw(values[name])) for name in names]))


@st.composite
def _clusters(draw: st.DrawFn) -> ClusterSpec:
    """Any cluster: classes of nodes that share everything but name and host, in any order."""
    rack_names = draw(st.lists(_NAMES, max_size=2, unique=True))
    racks = tuple(Rack(name=name, uplink_out=draw(_RATES), uplink_in=draw(_RATES)) for name in rack_names)
    names = draw(st.lists(_NAMES, min_size=1, max_size=7, unique=True))
    classes: dict[int, list[Node]] = {}
    for name in names:
        index = draw(st.integers(0, 3))
        if index in classes:
            node = dataclasses.replace(classes[index][0], name=name, host=f"{name}.lan")
        else:
            node = draw(_node(name, rack_names))
        classes.setdefault(index, []).append(node)
    first = classes[min(classes)]
    classes[min(classes)] = [dataclasses.replace(node, role="worker", devices=node.devices or 1) for node in first]
    declared = draw(st.sets(st.sampled_from(sorted(classes))))
    return ClusterSpec(
        name=draw(st.sampled_from(["lab", "a b: c", "8", "null", "yes"])),
        nodes=tuple(draw(st.permutations([node for members in classes.values() for node in members]))),
        racks=racks,
        alike=tuple(tuple(node.name for node in classes[index]) for index in declared),
        launcher=draw(st.sampled_from(["local", "testbed", "ssh"])),
        backend=draw(st.sampled_from(["gloo", "nccl"])),
        costs=draw(st.none() | _costs()),
    )


@st.composite
def _node(draw: st.DrawFn, name: str, rack_names: list[str]) -> Node:
    role = draw(st.sampled_from(["worker", "worker", "server"]))
    within = draw(st.none() | _RATES)
    return Node(
        name=name,
        host=draw(st.sampled_from([name, f"{name}.example.org"])),
        role=role,
        devices=draw(st.integers(1, 8)) if role == "worker" else 0,
        bandwidth_out=draw(_RATES),
        bandwidth_in=draw(_RATES),
        intra_bandwidth=within,
        intra_total=draw(st.sampled_from([None, within, 1e12 if within is None else 2 * within])),
        nics=draw(st.integers(1, 3)),
        rack=draw(st.sampled_from([None, *rack_names])),
        memory_bytes=draw(st.none() | _SIZES),
        storage=draw(st.none() | _RATES),
    )


@given(_clusters())
def test_what_is_written_reads_back(cluster: ClusterSpec) -> None:
    for text in (documents.format_yaml(dump_cluster(cluster)), documents.format_json(dump_cluster(cluster))):
        assert parse_cluster(documents.parse_document(text, file="other.yaml")) == cluster


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_saved_files_load(tmp_path: Path, suffix: str) -> None:
    cluster = load_cluster("4-hosts-2-servers")
    save_cluster(tmp_path / f"c{suffix}", cluster)
    assert load_cluster(tmp_path / f"c{suffix}") == cluster


def test_defaults_are_not_written() -> None:
    fields: dict[str, Any] = dump_cluster(_parse("nodes: [{name: a, bandwidth: 1 Gbit/s}]"))
    assert fields == {
        "schema": "autosync.cluster/1",
        "name": "lab",
        "launcher": "local",
        "backend": "gloo",
        "nodes": [{"name": "a", "bandwidth": "1 Gbit/s"}],
    }
