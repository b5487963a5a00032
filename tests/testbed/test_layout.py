"""The plan of a testbed: data that says it all before anything is done."""

import pytest

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_file import build_cluster, dump_cluster
from autosync.testbed.layout import NetworkLayout, build_calls, cluster_key, plan_layout, removal_calls

KEY = "KEY"
TWO_HOSTS = """\
ip netns add autosync-KEY-switch
ip netns add autosync-KEY-0
ip netns add autosync-KEY-1
ip -n autosync-KEY-switch link add name spine mtu 9000 group 77 type bridge mcast_snooping 0
ip -n autosync-KEY-switch link set spine up addrgenmode none
ip -n autosync-KEY-switch link add name host0 mtu 9000 group 77 type veth peer name eth0 mtu 9000 netns autosync-KEY-0
ip -n autosync-KEY-switch link set host0 master spine up addrgenmode none
ip -n autosync-KEY-switch link add name host1 mtu 9000 group 77 type veth peer name eth0 mtu 9000 netns autosync-KEY-1
ip -n autosync-KEY-switch link set host1 master spine up addrgenmode none
tc -n autosync-KEY-switch qdisc add dev host0 root tbf rate 125000000bps burst 63500 limit 67108864
tc -n autosync-KEY-switch qdisc add dev host1 root tbf rate 25000000bps burst 19300 limit 67108864
ip -n autosync-KEY-0 link set lo up
ip -n autosync-KEY-0 link set eth0 up addrgenmode none gso_max_size 62500
ip -n autosync-KEY-0 address add 10.77.7.1/24 dev eth0 noprefixroute
ip -n autosync-KEY-0 route add 10.77.7.0/24 dev eth0 src 10.77.7.1 congctl reno
tc -n autosync-KEY-0 qdisc add dev eth0 root tbf rate 125000000bps burst 63500 limit 67108864
ip -n autosync-KEY-1 link set lo up
ip -n autosync-KEY-1 link set eth0 up addrgenmode none gso_max_size 18300
ip -n autosync-KEY-1 address add 10.77.7.2/24 dev eth0 noprefixroute
ip -n autosync-KEY-1 route add 10.77.7.0/24 dev eth0 src 10.77.7.2 congctl reno
tc -n autosync-KEY-1 qdisc add dev eth0 root tbf rate 12500000bps burst 19300 limit 67108864"""


def _node(name: str, out: float = 1.25e8, into: float = 1.25e8, rack: str | None = None) -> Node:
    return Node(name=name, host=name, bandwidth_out=out, bandwidth_in=into, rack=rack)


def _text(layout: NetworkLayout) -> str:
    return "\n".join(map(str, build_calls(layout))).replace(layout.key, KEY)


def test_two_hosts_written_out() -> None:
    cluster = ClusterSpec(name="two", nodes=(_node("a"), _node("b", out=1.25e7, into=2.5e7)), launcher="testbed")
    assert _text(plan_layout(cluster, 7)) == TWO_HOSTS


def test_removal_written_out() -> None:
    layout = plan_layout(ClusterSpec(name="two", nodes=(_node("a"), _node("b"))), 0)
    text = "\n".join(map(str, removal_calls(layout.switch, layout.namespaces))).replace(layout.key, KEY)
    assert text == (
        "ip -n autosync-KEY-switch link delete group 77\n"
        "ip netns delete autosync-KEY-switch\n"
        "ip netns delete autosync-KEY-0\n"
        "ip netns delete autosync-KEY-1"
    )


def test_a_rack_is_a_bridge_with_a_shaped_uplink() -> None:
    racks = (Rack(name="east", uplink_out=5e6, uplink_in=1e7), Rack(name="west", uplink_out=2e7, uplink_in=2e7))
    nodes = (_node("a", rack="east"), _node("b", rack="west"), _node("c"))
    lines = _text(plan_layout(ClusterSpec(name="racks", nodes=nodes, racks=racks), 0)).splitlines()
    inside = [line.removeprefix(f"ip -n autosync-{KEY}-switch ") for line in lines]
    assert [line for line in inside if "master" in line] == [
        "link set uplink0 master rack0 up addrgenmode none",
        "link set downlink0 master spine up addrgenmode none",
        "link set uplink1 master rack1 up addrgenmode none",
        "link set downlink1 master spine up addrgenmode none",
        "link set host0 master rack0 up addrgenmode none",
        "link set host1 master rack1 up addrgenmode none",
        "link set host2 master spine up addrgenmode none",
    ]
    shaped = [line.split() for line in lines if "link0" in line and line.startswith("tc")]
    assert [(words[6], words[10]) for words in shaped] == [("uplink0", "5000000bps"), ("downlink0", "10000000bps")]


def test_the_uplink_of_a_rack_in_a_pod_ends_at_the_pod() -> None:
    racks = (Rack(name="pod", uplink_out=5e6, uplink_in=1e7), Rack(name="r", uplink_out=2e7, uplink_in=3e7, rack="pod"))
    nodes = (_node("a", rack="r"), _node("b", rack="pod"), _node("c"))
    lines = _text(plan_layout(ClusterSpec(name="pods", nodes=nodes, racks=racks), 0)).splitlines()
    inside = [line.removeprefix(f"ip -n autosync-{KEY}-switch ") for line in lines]
    assert [line.split()[2:5:2] for line in inside if " master " in line] == [
        ["uplink0", "rack0"],
        ["downlink0", "spine"],
        ["uplink1", "rack1"],
        ["downlink1", "rack0"],
        ["host0", "rack1"],
        ["host1", "rack0"],
        ["host2", "spine"],
    ]
    shaped = [line.split() for line in lines if "link1" in line and line.startswith("tc")]
    assert [(words[6], words[10]) for words in shaped] == [("uplink1", "20000000bps"), ("downlink1", "30000000bps")]


def test_the_key_changes_with_anything_in_the_file_and_with_nothing_else() -> None:
    cluster = ClusterSpec(name="two", nodes=(_node("a"), _node("b")), launcher="testbed")
    again = build_cluster({key: value for key, value in dump_cluster(cluster).items() if key != "schema"})
    assert cluster_key(again) == cluster_key(cluster)
    slower = ClusterSpec(name="two", nodes=(_node("a"), _node("b", out=1e8)), launcher="testbed")
    assert cluster_key(slower) != cluster_key(cluster)
    assert plan_layout(cluster, 3).key == plan_layout(cluster, 4).key


def test_names_are_short_enough_for_the_kernel_and_addresses_differ() -> None:
    layout = plan_layout(ClusterSpec(name="most", nodes=tuple(_node(f"n{i}") for i in range(250))), 255)
    assert max(len(host.port) for host in layout.hosts) <= 15
    assert len({host.address for host in layout.hosts}) == 250
    assert layout.hosts[-1].address == "10.77.255.250"


def test_more_hosts_than_addresses_are_refused() -> None:
    cluster = ClusterSpec(name="many", nodes=tuple(_node(f"n{i}") for i in range(251)))
    with pytest.raises(InputError, match="many has 251 nodes \\(a testbed has at most 250 hosts"):
        plan_layout(cluster, 0)
