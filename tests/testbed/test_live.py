"""Real testbeds: what is up is what the file says, and nothing stays that should not."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import OperationError, UnknownNameError
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.testbed import Testbed, live, processes, records, up
from autosync.testbed.commands import tool_environment
from autosync.testbed.layout import cluster_key, plan_layout
from autosync.testbed.live import belongs
from autosync.testbed.records import TestbedRecord
from autosync.testbed.requirements import find_folders

MakeCluster = Callable[..., ClusterSpec]

SEND = """
import socket, sys
addresses = sys.argv[2:]
if sys.argv[1] == "listen":
    server = socket.create_server((addresses[0], 5000))
    print("ready", flush=True)
    while True:
        connection, peer = server.accept()
        connection.sendall(peer[0].encode())
        connection.close()
for address in addresses:
    with socket.create_connection((address, 5000), timeout=5) as connection:
        print(connection.recv(100).decode())
"""


def _links_and_namespaces(key: str) -> list[str]:
    """What the machine has of a testbed: namespaces by name, and links outside any of them."""
    names = [line.split()[0] for line in _output(["ip", "netns", "list"]).splitlines() if key in line]
    return names + [link["ifname"] for link in json.loads(_output(["ip", "-json", "link"])) if "host" in link["ifname"]]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=30, env=tool_environment()
    ).stdout


def _python(bed: Testbed, node: str, *arguments: str) -> list[str]:
    return [*bed.enter(node), sys.executable, "-c", SEND, *arguments]


def _talk(bed: Testbed, nodes: Sequence[str]) -> None:
    """Every node connects to every other, itself included, and is seen there under its own address."""
    listeners = [
        subprocess.Popen(_python(bed, node, "listen", bed.address(node)), stdout=subprocess.PIPE, text=True)
        for node in nodes
    ]
    try:
        for listener in listeners:
            assert listener.stdout is not None
            assert listener.stdout.readline() == "ready\n"
        addresses = [bed.address(node) for node in nodes]
        for node in nodes:
            seen = _output(_python(bed, node, "connect", *addresses)).split()
            assert seen == [bed.address(node)] * len(nodes)
    finally:
        for listener in listeners:
            listener.kill()
            listener.communicate()


def _rates(bed: Testbed, node: str) -> dict[str, int]:
    """The rate of each shaped interface that `tc` sees from within a host, in bytes per second."""
    shown = json.loads(_output([*bed.enter(node), "tc", "-json", "qdisc"]))
    return {item["dev"]: item["options"]["rate"] for item in shown if item["kind"] == "tbf"}


def test_all_pairs_talk_and_nothing_is_left(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(100, 200, 300)
    key = cluster_key(cluster)
    with up(cluster) as bed:
        _talk(bed, ["n0", "n1", "n2"])
        counters = bed.counters()
        assert all(sent > 0 and received > 0 for sent, received in counters.values())
        assert len(find_folders().existing(key)) == 4
    assert find_folders().existing(key) == ()
    assert records.read(find_folders(), key) is None
    if not find_folders().rootless:
        assert _links_and_namespaces(key) == []


def test_up_twice_is_one_testbed_with_two_users(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    first = up(cluster)
    second = up(cluster)
    ids = {processes.namespace_id(find_folders().namespace(first.layout.key, first.namespace("n0")))}
    assert second.layout == first.layout
    first.close()
    first.close()
    assert {processes.namespace_id(find_folders().namespace(first.layout.key, second.namespace("n0")))} == ids
    assert second.faults() == ()
    second.close()
    assert find_folders().existing(first.layout.key) == ()


def test_kept_until_down_and_harmless_when_repeated(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    up(cluster, keep=True)
    up(cluster, keep=True)
    with up(cluster):
        pass
    assert live.find(cluster).faults() == ()
    assert live.down(cluster) == [cluster.name]
    assert live.down(cluster) == []
    with pytest.raises(OperationError, match=f"no testbed of {cluster.name} is up"):
        live.find(cluster)


def test_two_side_by_side(make_cluster: MakeCluster) -> None:
    with up(make_cluster()) as one, up(make_cluster()) as other:
        assert one.address("n0") != other.address("n0")
        assert one.namespace("n0") != other.namespace("n0")
        _talk(one, ["n0", "n1"])
        _talk(other, ["n0", "n1"])


def test_an_edited_file_replaces_what_was_kept(make_cluster: MakeCluster) -> None:
    before = make_cluster(100, 100)
    after = make_cluster(100, 200, name=before.name)
    up(before, keep=True)
    with pytest.raises(OperationError, match="was built from another content of the file"):
        live.find(after)
    up(after, keep=True)
    assert find_folders().existing(cluster_key(before)) == ()
    assert live.down(before) == [before.name], "by name: the file may have been edited back"


def test_a_cluster_of_the_same_name_in_another_file_is_left_alone(make_cluster: MakeCluster) -> None:
    one = make_cluster(100, 100)
    other, edited = make_cluster(100, 200, name=one.name), make_cluster(100, 300, name=one.name)
    up(one, keep=True, file="/a/cluster.yaml")
    up(other, keep=True, file="/b/cluster.yaml")
    assert live.find(one).faults() == ()
    assert live.down(other, file="/b/cluster.yaml") == [one.name]
    assert live.find(one).faults() == ()
    # The file of the first one was edited meanwhile.
    assert live.down(edited, file="/a/cluster.yaml") == [one.name]


def test_a_kept_testbed_whose_file_is_not_recorded_goes_by_its_name() -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e7, bandwidth_in=1e7) for i in range(2))
    cluster = ClusterSpec(name="lab", nodes=nodes, launcher="testbed")
    edited = replace(cluster, nodes=(replace(nodes[0], bandwidth_in=2e7), nodes[1]))
    record = TestbedRecord(layout=plan_layout(cluster, 0), is_whole=True, is_kept=True)
    assert belongs(record, edited, "/a/lab.yaml")
    assert belongs(replace(record, file="/a/lab.yaml"), edited, "/a/lab.yaml")
    assert not belongs(replace(record, file="/b/lab.yaml"), edited, "/a/lab.yaml")
    assert not belongs(replace(record, is_kept=False), edited, "/a/lab.yaml")
    assert belongs(replace(record, is_kept=False), cluster, "/a/lab.yaml")


def test_unequal_and_asymmetric_rates(make_cluster: MakeCluster) -> None:
    with up(make_cluster((100, 300), 50)) as bed:
        assert _rates(bed, "n0") == {"eth0": 12_500_000}
        assert _rates(bed, "n1") == {"eth0": 6_250_000}
        switch = find_folders().enter(bed.layout.key, bed.layout.switch)
        shown = json.loads(_output([*switch, "tc", "-json", "qdisc"]))
        into = {item["dev"]: item["options"]["rate"] for item in shown if item["kind"] == "tbf"}
        assert into == {"host0": 37_500_000, "host1": 6_250_000}


def test_racks_are_bridges_behind_shaped_uplinks(make_cluster: MakeCluster) -> None:
    racks = (Rack(name="east", uplink_out=1e7, uplink_in=2e7), Rack(name="west", uplink_out=3e7, uplink_in=3e7))
    with up(make_cluster(100, 100, 100, racks=racks)) as bed:
        _talk(bed, ["n0", "n1", "n2"])
        switch = find_folders().enter(bed.layout.key, bed.layout.switch)
        masters = {link["ifname"]: link.get("master") for link in json.loads(_output([*switch, "ip", "-json", "link"]))}
        assert [masters[port] for port in ("host0", "host1", "host2")] == ["rack0", "rack1", "rack0"]
        shown = json.loads(_output([*switch, "tc", "-json", "qdisc"]))
        rates = {item["dev"]: item["options"]["rate"] for item in shown if item["kind"] == "tbf"}
        assert (rates["uplink0"], rates["downlink0"], rates["uplink1"]) == (10_000_000, 20_000_000, 30_000_000)


def test_a_pulled_cable_cuts_off_and_up_puts_it_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with up(cluster) as bed:
        bed.set_link("n1", up=False)
        assert bed.faults() == ("the link of n1 is down",)
        shown = json.loads(_output([*bed.enter("n1"), "ip", "-json", "link", "show", "dev", "eth0"]))
        assert "NO-CARRIER" in shown[0]["flags"]
        up(cluster).close()
        assert bed.faults() == ()
        _talk(bed, ["n0", "n1"])


def test_a_link_gets_other_rates_both_ways(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with up(cluster) as bed:
        bed.set_rates("n1", out=6e6, into=5e6)
        assert bed.faults() == ()
        # Whoever comes while it is in use finds it as it is now.
        with up(cluster) as other:
            assert [host.bandwidth_out for host in other.layout.hosts][1] == 6e6
        switch = find_folders().enter(bed.layout.key, bed.layout.switch)
        hosts = {"eth0": [*bed.enter("n1")], "host1": [*switch]}
        shown = {port: json.loads(_output([*enter, "tc", "-json", "qdisc"])) for port, enter in hosts.items()}
        rates = {
            port: next(one["options"]["rate"] for one in found if one.get("dev") == port)
            for port, found in shown.items()
        }
        assert rates == {"eth0": 6_000_000, "host1": 5_000_000}
        _talk(bed, ["n0", "n1"])


def test_a_kept_testbed_with_other_rates_is_built_anew_for_its_next_user(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    up(cluster, keep=True)
    live.find(cluster).set_rates("n1", out=6e6, into=5e6)
    with up(cluster) as bed:
        assert [host.bandwidth_out for host in bed.layout.hosts][1] == 12.5e6
        assert bed.faults() == ()


def test_a_damaged_testbed_is_rebuilt(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    up(cluster, keep=True)
    bed = live.find(cluster)
    _output([*bed.enter("n0"), "tc", "qdisc", "delete", "dev", "eth0", "root"])
    assert bed.faults() == ("n0 does not send at 12500000 B/s",)
    up(cluster, keep=True)
    assert live.find(cluster).faults() == ()


def test_processes_are_seen_and_ended_even_stopped_ones(make_cluster: MakeCluster) -> None:
    with up(make_cluster()) as bed:
        sleeper = subprocess.Popen([*bed.enter("n1"), "sleep", "60"])
        stubborn = subprocess.Popen([*bed.enter("n0"), "sh", "-c", "trap '' TERM; kill -STOP $$"])
        seen: dict[str, list[processes.Running]] = {}
        deadline = time.monotonic() + 20
        while not (seen.get("n1") and seen.get("n0")) and time.monotonic() < deadline:
            seen = bed.processes()
        assert [process.pid for process in seen["n1"]] == [sleeper.pid]
        assert [process.pid for process in seen["n0"]] == [stubborn.pid]
    assert sleeper.wait(5) != 0
    stubborn.wait(5)


def test_down_is_refused_while_another_process_uses_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster()
    bed = up(cluster)
    folders = find_folders()
    record = records.read(folders, bed.layout.key)
    assert record is not None
    other = processes.start_time(1)
    assert other is not None
    lease = replace(record.leases[0], pid=1, started=other)
    records.write(folders, replace(record, leases=(*record.leases, lease)))
    bed.close()
    assert bed.faults() == (), "the other process still has it"
    with pytest.raises(OperationError, match="is used by process 1: end that first"):
        live.down(cluster)
    assert live.down(cluster, force=True) == [cluster.name]


def test_a_lease_of_a_process_that_has_ended_is_void(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    bed = up(cluster)
    folders = find_folders()
    record = records.read(folders, bed.layout.key)
    assert record is not None
    lease = replace(record.leases[0], started="0")
    records.write(folders, replace(record, leases=(lease,)))
    up(make_cluster()).close()
    assert folders.existing(bed.layout.key) == (), "the next up of any cluster sweeps"


def test_a_record_that_cannot_be_read_is_swept(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    bed = up(cluster)
    find_folders().record(bed.layout.key).write_text("{", encoding="utf-8")
    assert live.down(cluster) == []
    assert find_folders().existing(bed.layout.key) == ()


def test_an_unknown_node_is_named(make_cluster: MakeCluster) -> None:
    with up(make_cluster()) as bed, pytest.raises(UnknownNameError, match="unknown node 'n9' \\(known: n0, n1\\)"):
        bed.address("n9")
