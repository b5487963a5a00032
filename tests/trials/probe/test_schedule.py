"""Who sends to whom: every link is filled by peers that are wider together, and by no others than are needed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.trials.probe.schedule import (
    PEERS_WIDER,
    Schedule,
    Stream,
    adapted,
    all_workers,
    plan_schedule,
    probe_ranks,
    trip_bytes,
)

MakeCluster = Callable[..., ClusterSpec]


def _streams(schedule: Schedule, kind: str) -> dict[str, Stream]:
    return {stream.subject: stream for stream in schedule.streams if stream.kind == kind}


@pytest.mark.parametrize("name", sorted(shipped_clusters()))
def test_every_link_is_measured_with_wide_enough_peers(name: str) -> None:
    cluster = all_workers(load_cluster(name))
    schedule = plan_schedule(cluster)
    nodes = {node.name: node for node in cluster.nodes}
    if len(nodes) == 1:
        assert {stream.kind for stream in schedule.streams} == {"within"}
        return
    for kind in ("out", "in", "both"):
        assert _streams(schedule, kind).keys() == nodes.keys()
    for subject, stream in _streams(schedule, "out").items():
        peers = [cluster.nodes[cluster.ranks[flow.destination].node] for flow in stream.flows]
        assert subject not in {peer.name for peer in peers}
        assert {cluster.nodes[cluster.ranks[flow.source].node].name for flow in stream.flows} == {subject}
        enough = sum(peer.bandwidth_in for peer in peers) >= PEERS_WIDER * nodes[subject].bandwidth_out
        assert enough or len(peers) == len(nodes) - 1
    for subject, stream in _streams(schedule, "both").items():
        assert stream.flows == _streams(schedule, "out")[subject].flows + _streams(schedule, "in")[subject].flows


def test_nodes_that_only_serve_get_a_rank() -> None:
    cluster = load_cluster("4-hosts-2-servers")
    probed = all_workers(cluster)
    assert [node.devices for node in probed.nodes] == [1] * 6
    assert [node.name for node in probed.nodes] == [node.name for node in cluster.nodes]


def test_ranks_of_the_launcher_have_their_numbers_in_the_probe(make_cluster: MakeCluster) -> None:
    first, *others = make_cluster(1e8, 1e8, 1e8, devices=2).nodes
    server = replace(first, role="server", devices=0)
    cluster = replace(make_cluster(1e8, 1e8, 1e8, devices=2), nodes=(server, *others))
    # The launcher numbers the server last, and the probe its node first.
    assert probe_ranks(cluster) == (1, 2, 3, 4, 0)
    assert probe_ranks(all_workers(cluster)) == (0, 1, 2, 3, 4)


def test_a_node_with_several_ranks_uses_all_of_them(make_cluster: MakeCluster) -> None:
    schedule = plan_schedule(make_cluster(1e8, 1e8, 1e8, devices=2))
    assert {flow.source for flow in _streams(schedule, "out")["n1"].flows} == {2, 3}
    within = _streams(schedule, "within")
    assert [(flow.source, flow.destination) for stream in within.values() for flow in stream.flows] == [
        (0, 1),
        (2, 3),
        (4, 5),
    ]


def test_a_rack_is_measured_by_all_of_its_nodes_at_once() -> None:
    cluster = load_cluster("16-hosts-2-racks")
    schedule = plan_schedule(cluster)
    for kind in ("rack_out", "rack_in"):
        for rack, stream in _streams(schedule, kind).items():
            assert len(stream.flows) == 8
            ends = [(flow.source, flow.destination) for flow in stream.flows]
            inside = {source if kind == "rack_out" else destination for source, destination in ends}
            assert {cluster.nodes[cluster.ranks[rank].node].rack for rank in inside} == {rack}
            assert len({rank for pair in ends for rank in pair}) == 16


def test_a_rack_with_all_nodes_in_it_has_nobody_to_talk_to(make_cluster: MakeCluster) -> None:
    racked = load_cluster("16-hosts-2-racks")
    inside = [replace(node, rack=racked.racks[0].name) for node in racked.nodes]
    schedule = plan_schedule(replace(racked, nodes=tuple(inside), alike=()))
    assert not _streams(schedule, "rack_out")


@pytest.mark.parametrize("rate", [1e6, 1.25e8, 1.25e10])
def test_long_messages_are_long_on_the_wire(rate: float) -> None:
    sizes = trip_bytes(rate)
    assert sizes == tuple(sorted(sizes))
    assert sizes[0] == 8
    assert sizes[-1] / rate >= 0.0079


def test_streams_adapt_to_what_was_seen(make_cluster: MakeCluster) -> None:
    both = _streams(plan_schedule(make_cluster(1e9, 1e9, 1e9, 1e9)), "both")["n1"]
    slower = adapted(both, (1,), {"out": 1e8})
    out, into = slower.flows[:3], slower.flows[3:]
    assert {flow.source for flow in out} == {1}
    assert [10 * flow.chunk_bytes for flow in out] == pytest.approx([both.flows[0].chunk_bytes] * 3, rel=0.01)
    assert into == both.flows[3:]
    assert adapted(both, (1,), {}) == both
