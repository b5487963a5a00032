"""The cluster in memory: its ranks, its rules, which nodes are alike, and what people see of it."""

import dataclasses

import pytest

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec, Node, Rack, describe, symmetry_classes

_POD = Rack(name="pod", uplink_out=1.0, uplink_in=1.0)


def _node(name: str, **fields: object) -> Node:
    plain = Node(name=name, host=name, bandwidth_out=1e8, bandwidth_in=1e8)
    return dataclasses.replace(plain, **fields)


def _cluster(*nodes: Node, **fields: object) -> ClusterSpec:
    plain = ClusterSpec(name="test", nodes=nodes or (_node("a"), _node("b")))
    return dataclasses.replace(plain, **fields)


def _mistake(*nodes: Node, **fields: object) -> str:
    """The one mistake of a cluster."""
    with pytest.raises(InputError) as caught:
        ClusterSpec(**{"name": "test", "nodes": nodes or (_node("a"), _node("b"))} | fields)
    (problem,) = caught.value.problems
    return str(problem)


def test_worker_ranks_come_first_and_servers_last() -> None:
    cluster = _cluster(_node("a", devices=2), _node("s", role="server", devices=0), _node("b"))
    assert [(rank.index, rank.node, rank.local, rank.role) for rank in cluster.ranks] == [
        (0, 0, 0, "worker"),
        (1, 0, 1, "worker"),
        (2, 2, 0, "worker"),
        (3, 1, 0, "server"),
    ]
    assert cluster.num_workers == 3
    assert cluster.worker_groups() == ((0, 1), (2,))
    assert [cluster.leader(node) for node in range(3)] == [0, 3, 2]
    assert cluster.node_index("b") == 2


def test_symmetry_classes_hold_every_node_once_in_order_of_first_member() -> None:
    nodes = tuple(_node(name) for name in "abcde")
    cluster = _cluster(*nodes, alike=(("e", "b"), ("d", "a")))
    assert symmetry_classes(cluster) == ((0, 3), (1, 4), (2,))


def test_undeclared_nodes_stand_alone() -> None:
    assert symmetry_classes(_cluster()) == ((0,), (1,))


def test_fingerprint_is_of_what_plans_depend_on() -> None:
    nodes = (_node("a"), _node("b"), _node("c"), _node("d"))
    cluster = _cluster(*nodes, alike=(("a", "b"), ("c", "d")))
    same = [
        dataclasses.replace(cluster, alike=(("d", "c"), ("b", "a"))),
        dataclasses.replace(cluster, name="other", launcher="ssh"),
        dataclasses.replace(cluster, nodes=tuple(dataclasses.replace(n, bandwidth_in=5.0) for n in nodes)),
        dataclasses.replace(cluster, nodes=tuple(dataclasses.replace(n, host=f"{n.name}.lan") for n in nodes)),
    ]
    different = [
        dataclasses.replace(cluster, alike=()),
        dataclasses.replace(cluster, alike=(("a", "b", "c", "d"),)),
        dataclasses.replace(cluster, backend="nccl"),
        dataclasses.replace(cluster, nodes=tuple(dataclasses.replace(n, devices=2) for n in nodes)),
        dataclasses.replace(cluster, nodes=nodes[::-1]),
    ]
    assert {other.fingerprint() for other in same} == {cluster.fingerprint()}
    assert len({cluster.fingerprint(), *(other.fingerprint() for other in different)}) == 6


@pytest.mark.parametrize(
    ("nodes", "fields", "message"),
    [
        ((_node("a"), _node("a")), {}, "nodes[1].name: 'a' is taken (each node has a name of its own)"),
        (
            (_node("a b", host="a"),),
            {},
            (
                "nodes[0].name: 'a b' is no node name"
                " (a name is made of letters, digits and _ : . % - and does not begin with . % or -)"
            ),
        ),
        ((_node("a", host="-v"),), {}, "nodes[0].host: '-v' is no host (a host is a name or an address)"),
        (
            (_node("a"), _node("b", host="a")),
            {"launcher": "ssh"},
            (
                "nodes[1].host: 'a' is the host of 'a' too"
                " (each node has a host of its own, for it has one network interface)"
            ),
        ),
        (
            (_node("a"), _node("s", role="server")),
            {},
            (
                "nodes[1].devices: a server-only node has no devices, not 1"
                " (devices is 0 or left out where the role is server)"
            ),
        ),
        (
            (_node("a", devices=0),),
            {},
            "nodes[0].devices: 0 devices (a worker has 1 to 1024 devices, one rank each)",
        ),
        (
            (_node("s", role="server", devices=0),),
            {},
            "nodes: the cluster has no worker (at least one node has the role worker)",
        ),
        (
            (_node("a"), _node("b", role="boss")),
            {},
            "nodes[1].role: unknown role 'boss' (known: worker, server)",
        ),
        (
            (_node("a", bandwidth_in=0.0),),
            {},
            "nodes[0].bandwidth_in: 0.0 bytes per second is no rate (a rate is finite and above 0)",
        ),
        (
            (_node("a", intra_bandwidth=float("inf")),),
            {},
            "nodes[0].intra_bandwidth: inf bytes per second is no rate (a rate is finite and above 0)",
        ),
        ((_node("a", memory_bytes=0),), {}, "nodes[0].memory: 0 bytes of memory (above 0)"),
        (
            (_node("a", rack="est"),),
            {"racks": (Rack(name="east", uplink_out=1.0, uplink_in=1.0),)},
            "nodes[0].rack: unknown rack 'est' (known: east); did you mean 'east'?",
        ),
        ((_node("a", rack="east"),), {}, "nodes[0].rack: unknown rack 'east' (known: none)"),
        (
            (),
            {"racks": (Rack(name="r", uplink_out=1.0, uplink_in=1.0),) * 2},
            "racks[1].name: 'r' is taken (each rack has a name of its own)",
        ),
        (
            (),
            {"racks": (Rack(name="r", uplink_out=1.0, uplink_in=-1.0),)},
            "racks[0].uplink_in: -1.0 bytes per second is no rate (a rate is finite and above 0)",
        ),
        (
            (),
            {"racks": (Rack(name="r", uplink_out=1.0, uplink_in=1.0, rack="pot"), _POD)},
            "racks[0].rack: unknown rack 'pot' (known: r, pod); did you mean 'pod'?",
        ),
        (
            (),
            {
                "racks": (
                    _POD,
                    dataclasses.replace(_POD, name="r", rack="pod"),
                    dataclasses.replace(_POD, name="q", rack="r"),
                )
            },
            "racks[2].rack: 'r' stands in a rack itself (a rack may stand in a pod, and a pod in none)",
        ),
        (
            (),
            {"racks": (dataclasses.replace(_POD, rack="pod"),)},
            "racks[0].rack: 'pod' stands in a rack itself (a rack may stand in a pod, and a pod in none)",
        ),
        ((), {"alike": ((),)}, "alike[0]: a class without nodes (a class names nodes)"),
        ((), {"alike": (("a", "c"),)}, "alike[0][1]: unknown node 'c' (known: a, b)"),
        (
            (),
            {"alike": (("a", "b"), ("b",))},
            (
                "alike[1][0]: 'b' is in a class already"
                " (a node is named in one class, once; nodes that are counted are a class already)"
            ),
        ),
        (
            (_node("a"), _node("b", devices=2, bandwidth_out=5.0)),
            {"alike": (("a", "b"),)},
            (
                "alike[0][1]: 'b' is not like 'a': they differ in devices, bandwidth_out"
                " (alike nodes agree in role, devices, rates, interfaces, rack, memory and compute)"
            ),
        ),
        (
            (_node("a", rack="r"), _node("b", rack="q")),
            {
                "alike": (("a", "b"),),
                "racks": tuple(Rack(name=name, uplink_out=1.0, uplink_in=1.0) for name in "rq"),
            },
            (
                "alike[0][1]: 'b' is not like 'a': they differ in rack"
                " (alike nodes agree in role, devices, rates, interfaces, rack, memory and compute)"
            ),
        ),
        (
            (),
            {"launcher": "slrum"},
            (
                "launcher: unknown launcher 'slrum' (known: kubernetes, local, ray, slurm, ssh, testbed);"
                " did you mean 'slurm'?"
            ),
        ),
        ((), {"name": " "}, "name: ' ' names no cluster (a name is one line of 1 to 100 signs)"),
    ],
)
def test_each_rule_refuses_what_breaks_it(nodes: tuple[Node, ...], fields: dict[str, object], message: str) -> None:
    assert _mistake(*nodes, **fields) == message


def test_limits_keep_a_typing_error_from_becoming_a_million_ranks() -> None:
    assert _mistake(*(_node(f"n{i}") for i in range(4097))) == "nodes: 4097 nodes (at most 4096 nodes)"
    many = (_node(f"n{i}", devices=1024) for i in range(17))
    assert _mistake(*many) == "nodes: 17408 ranks (at most 16384 ranks)"


def test_a_long_list_of_known_names_is_cut() -> None:
    message = _mistake(*(_node(f"n{i}") for i in range(30)), alike=(("x",),))
    assert "n19 and 10 more)" in message


def test_nodes_may_share_this_machine() -> None:
    cluster = _cluster(_node("a", host="localhost"), _node("b", host="localhost"), launcher="local")
    assert [node.host for node in cluster.nodes] == ["localhost", "localhost"]


def test_describe() -> None:
    gigabit = 125e6
    cluster = ClusterSpec(
        name="lab",
        nodes=(
            Node(
                name="gpu-0", host="10.0.0.1", devices=4, bandwidth_out=gigabit, bandwidth_in=2 * gigabit,
                intra_bandwidth=25e9, rack="east",
            ),
            Node(
                name="gpu-1", host="10.0.0.2", devices=4, bandwidth_out=gigabit, bandwidth_in=2 * gigabit,
                intra_bandwidth=25e9, rack="east",
            ),
            Node(
                name="store", host="store", role="server", devices=0, bandwidth_out=gigabit, bandwidth_in=gigabit,
                memory_bytes=64 * 10**9,
            ),
        ),
        racks=(Rack(name="east", uplink_out=gigabit, uplink_in=gigabit / 2),),
        alike=(("gpu-0", "gpu-1"),),
        launcher="ssh",
    )  # fmt: skip
    assert describe(cluster) == (
        "lab: launcher ssh, backend gloo\n"
        "\n"
        "node   host      role    ranks  out       in        within      memory  rack  alike\n"
        "gpu-0  10.0.0.1  worker  0-3    1 Gbit/s  2 Gbit/s  200 Gbit/s          east  1\n"
        "gpu-1  10.0.0.2  worker  4-7    1 Gbit/s  2 Gbit/s  200 Gbit/s          east  1\n"
        "store  store     server  8      1 Gbit/s  1 Gbit/s              64 GB\n"
        "\n"
        "rack  uplink out  uplink in\n"
        "east  1 Gbit/s    500 Mbit/s\n"
        "\n"
        "total: 3 nodes, 8 worker ranks, 1 server rank; 3 Gbit/s out, 5 Gbit/s in"
    )
