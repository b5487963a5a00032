"""Warnings: each is given where it should be and only there."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.trials.probe import findings
from autosync.trials.probe.request import Interface, RankAnswer

MBIT = 125_000.0

MakeCluster = Callable[..., ClusterSpec]


def about(value: float, share: float = 0.01) -> Estimate:
    return Estimate(value=value, low=value * (1 - share), high=value * (1 + share))


def node(name: str, out: float, into: float | None = None, **others: object) -> NodeCalibration:
    """A node with these rates in Mbit/s, both at once a little lower."""
    into = out if into is None else into
    facts: dict[str, object] = {
        "rate_out": about(out * MBIT),
        "rate_in": about(into * MBIT),
        "rate_out_both": about(0.98 * out * MBIT),
        "rate_in_both": about(0.98 * into * MBIT),
        "message_cpu_seconds": about(1e-5),
        "compute_seconds": (about(0.001),),
        "interface": "eth0",
    }
    return NodeCalibration(name=name, **(facts | others))  # type: ignore[arg-type]


def calibration(*nodes: NodeCalibration, **others: object) -> Calibration:
    """Quiet and steady unless told otherwise."""
    facts: dict[str, object] = {
        "measured_at": "2026-01-01T00:00:00+00:00",
        "autosync": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.7",
        "backend": "gloo",
        "emulated": True,
        "cpu_share": 0.3,
        "step_seconds": about(0.03),
        "step_variation": 0.01,
        "nodes": nodes,
    }
    return Calibration(**(facts | others))  # type: ignore[arg-type]


def answer(rank: int, *interfaces: Interface, chosen: str | None = "eth0") -> RankAnswer:
    return RankAnswer(rank=rank, interfaces=interfaces, chosen_interface=chosen)


def find(cluster: ClusterSpec, measured: Calibration, answers: list[RankAnswer] | None = None) -> list[tuple[str, str]]:
    told = answers or [answer(rank) for rank in range(len(measured.nodes))]
    return [(one.kind, one.subject) for one in findings.find(cluster, measured, told)]


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ClusterSpec:
    return make_cluster(*[500 * MBIT] * 4)


def test_a_cluster_as_its_file_says_gives_no_warning(cluster: ClusterSpec) -> None:
    assert find(cluster, calibration(*(node(f"n{i}", 490) for i in range(4)))) == []


@pytest.mark.parametrize(("out", "into", "told"), [(150, 495, "out"), (495, 150, "in")])
def test_a_mislabelled_link_is_found_with_its_direction(
    cluster: ClusterSpec, out: float, into: float, told: str
) -> None:
    measured = calibration(node("n0", 495), node("n1", out, into), node("n2", 495), node("n3", 495))
    found = findings.find(cluster, measured, [answer(rank) for rank in range(4)])
    assert [(one.kind, one.subject) for one in found] == [("slow_link", "n1")]
    assert f"slower than claimed: 150 Mbit/s {told}, where the file says 500 Mbit/s (30%)" in str(found[0])


def test_a_link_that_may_be_as_claimed_is_not_called_slow(cluster: ClusterSpec) -> None:
    wide = Estimate(value=400 * MBIT, low=300 * MBIT, high=480 * MBIT)
    assert find(cluster, calibration(node("n0", 490, rate_out=wide), node("n1", 490))) == []


def test_with_two_nodes_either_end_may_be_slow(make_cluster: MakeCluster) -> None:
    found = findings.links(make_cluster(500 * MBIT, 500 * MBIT), calibration(node("n0", 495, 200), node("n1", 495)))
    assert [str(one).endswith("; with two nodes it may as well be the other end") for one in found] == [True]


def test_a_link_faster_than_claimed_is_told(cluster: ClusterSpec) -> None:
    assert find(cluster, calibration(node("n0", 990), node("n1", 495))) == [("fast_link", "n0")] * 2


def test_a_link_that_halves_when_both_directions_are_full(cluster: ClusterSpec) -> None:
    half = about(250 * MBIT)
    measured = calibration(node("n0", 495, rate_out_both=half, rate_in_both=half), node("n1", 495))
    assert find(cluster, measured) == [("half_duplex", "n0")] * 2


def _racked(cluster: ClusterSpec, uplink: float) -> ClusterSpec:
    """The first two nodes in a rack with an uplink of this rate in Mbit/s."""
    nodes = tuple(replace(one, rack="east") for one in cluster.nodes[:2]) + cluster.nodes[2:]
    return replace(cluster, nodes=nodes, racks=(Rack(name="east", uplink_out=uplink * MBIT, uplink_in=uplink * MBIT),))


def test_an_uplink_is_held_against_its_claim(cluster: ClusterSpec) -> None:
    rack = RackCalibration(name="east", rate_out=about(400 * MBIT), rate_in=about(780 * MBIT))
    measured = calibration(node("n0", 495), racks=(rack,))
    assert find(_racked(cluster, 800), measured) == [("slow_link", "east")]
    out = replace(measured, racks=(replace(rack, rate_in=None),))
    (found,) = findings.find(_racked(cluster, 2000), out, [answer(0)])
    assert "where the file says 2 Gbit/s and the links at its ends allow 995 Mbit/s (40%)" in str(found)


def test_an_uplink_that_its_nodes_cannot_fill_is_not_slow(cluster: ClusterSpec) -> None:
    rack = RackCalibration(name="east", rate_out=about(970 * MBIT), rate_in=about(970 * MBIT))
    nodes = [node(f"n{i}", 490) for i in range(4)]
    assert find(_racked(cluster, 4000), calibration(*nodes, racks=(rack,))) == []


def test_a_link_wider_than_its_peers_is_not_slow(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(*[rate * MBIT for rate in (10_000, 1000, 1000, 1000)])
    others = [node(f"n{i}", 990) for i in (1, 2, 3)]
    assert find(cluster, calibration(node("n0", 2900), *others)) == []
    assert find(cluster, calibration(node("n0", 2900, 1500), *others)) == [("slow_link", "n0")]


def test_alike_hosts_are_compared(make_cluster: MakeCluster) -> None:
    # All keep their claim by far; n2 is slower than those that are declared, or said, to be like it.
    cluster = make_cluster(*[100 * MBIT] * 4, 400 * MBIT)
    nodes = [node(f"n{i}", 124) for i in range(4)]
    nodes[2] = node("n2", 100, 124)
    measured = calibration(*nodes, node("n4", 400))
    assert find(cluster, measured) == [("slow_node", "n2")]
    assert find(replace(cluster, alike=(("n0", "n1", "n2"),)), measured) == [("slow_node", "n2")]
    assert find(replace(cluster, alike=(("n2", "n3"),)), measured) == []


def test_a_host_whose_messages_cost_more_is_slow(cluster: ClusterSpec) -> None:
    nodes = [node(f"n{i}", 495) for i in range(4)]
    nodes[3] = node("n3", 495, message_cpu_seconds=about(3e-5))
    assert find(cluster, calibration(*nodes)) == [("slow_node", "n3")]


def test_a_difference_within_the_intervals_is_none(cluster: ClusterSpec) -> None:
    nodes = [node(f"n{i}", 495) for i in range(4)]
    nodes[3] = node("n3", 495, message_cpu_seconds=about(2e-5, share=0.6))
    assert find(cluster, calibration(*nodes)) == []


def test_a_rank_that_computes_slower_is_found(cluster: ClusterSpec) -> None:
    nodes = [node(f"n{i}", 495, compute_seconds=(about(0.001), about(0.001))) for i in range(4)]
    nodes[1] = node("n1", 495, compute_seconds=(about(0.001), about(0.0014)))
    found = findings.find(cluster, calibration(*nodes), [answer(rank) for rank in range(8)])
    assert [(one.kind, one.subject) for one in found] == [("imbalance", "n1")]
    assert "1.40 times as long as most" in found[0].message


def test_a_node_that_only_serves_keeps_nothing_waiting(cluster: ClusterSpec) -> None:
    nodes = [node(f"n{i}", 495) for i in range(4)]
    nodes[3] = node("n3", 495, compute_seconds=(about(0.003),))
    server = replace(cluster.nodes[3], role="server", devices=0)
    assert find(cluster, calibration(*nodes)) == [("imbalance", "n3")]
    assert find(replace(cluster, nodes=(*cluster.nodes[:3], server)), calibration(*nodes)) == []


@pytest.mark.parametrize(
    ("interfaces", "used", "chosen", "told"),
    [
        ([("eth0", 10**9, None), ("eth1", 50, None)], "eth0", "eth0", None),
        (
            [("eth1", 10**9, None), ("eth0", 50, None)],
            "eth1",
            "eth0",
            "goes over eth1, although GLOO_SOCKET_IFNAME is eth0",
        ),
        ([("lo", 10**9, None)], "lo", None, "stays on the loopback interface"),
        ([("eth0", 10**9, 125e6), ("ib0", 0, 12.5e9)], "eth0", "eth0", "ib0 has 100 Gbit/s: name it in GLOO_SOCKET"),
        ([("eth0", 10**9, 12.5e9), ("eth1", 0, 125e6)], "eth0", None, None),
    ],
)
def test_the_wrong_interface_is_named(
    cluster: ClusterSpec,
    interfaces: list[tuple[str, int, float | None]],
    used: str,
    chosen: str | None,
    told: str | None,
) -> None:
    seen = [Interface(name=name, num_bytes=count, bytes_per_second=speed) for name, count, speed in interfaces]
    measured = calibration(node("n0", 495, interface=used), node("n1", 495))
    found = findings.find(cluster, measured, [answer(0, *seen, chosen=chosen), answer(1)])
    assert len(found) == (told is not None)
    assert all(told in str(one) and one.kind == "interface" for one in found if told)


def test_a_noisy_or_busy_machine_is_told_and_casts_doubt(cluster: ClusterSpec) -> None:
    nodes = [node("n0", 200), *(node(f"n{i}", 495) for i in (1, 2, 3))]
    measured = calibration(*nodes, cpu_share=0.9, step_variation=0.2)
    found = findings.find(cluster, measured, [answer(rank) for rank in range(4)])
    assert {one.kind for one in found} == {"slow_link", "noisy", "busy"}
    assert all("too busy to tell" in str(one) for one in found if one.subject)
    # On machines of their own busy processors are the training's.
    assert "busy" not in dict(find(cluster, replace(measured, emulated=False)))


def test_another_backend_than_was_measured_is_told(cluster: ClusterSpec) -> None:
    assert find(replace(cluster, backend="nccl"), calibration(node("n0", 495))) == [("backend", "")]
