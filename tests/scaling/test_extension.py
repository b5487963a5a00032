"""Clusters of other sizes: the measured nodes stay, new nodes are like the median, and nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.scaling.extension import assumptions, at_rate_ends, extended, num_worker_nodes, with_links
from autosync.specs.calibration import Calibration, Curve, CurvePoint, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.cluster_file import build_cluster, dump_cluster, load_cluster
from tests.helpers.random_specs import clusters


def _emulated(cluster: ClusterSpec) -> ClusterSpec:
    return replace(cluster, launcher="testbed", nodes=tuple([replace(node, host=node.name) for node in cluster.nodes]))


def _probed(cluster: ClusterSpec) -> ClusterSpec:
    nodes = tuple(
        [
            NodeCalibration(
                name=node.name,
                rate_out=_around(node.bandwidth_out * 0.98),
                rate_in=_around(node.bandwidth_in * 0.97),
                latency_seconds=_around(1e-4),
                burst_out_bytes=_around(2e4),
                interface="eth0",
            )
            for node in cluster.nodes
        ]
    )
    curve = Curve(collective="all_reduce", algorithm="native", points=(CurvePoint(num_bytes=8, seconds=_around(1e-3)),))
    racks = [RackCalibration(name=r.name, rate_out=_around(1e8), rate_in=_around(1e8)) for r in cluster.racks]
    calibration = Calibration(
        measured_at="2026-11-25T12:00:00+00:00",
        autosync="0",
        torch="2",
        python="3",
        backend="gloo",
        emulated=True,
        cpu_share=0.3,
        nodes=nodes,
        racks=tuple(racks),
        curves=(curve,),
        num_processors=2,
    )
    return replace(cluster, calibration=calibration)


def _around(value: float) -> Estimate:
    return Estimate(value=value, low=value * 0.99, high=value * 1.02)


some_clusters = st.tuples(clusters(), st.booleans()).map(
    lambda drawn: _probed(_emulated(drawn[0])) if drawn[1] else _emulated(drawn[0])
)


@given(some_clusters)
def test_as_many_nodes_as_there_are_change_nothing(cluster: ClusterSpec) -> None:
    assert extended(cluster, num_worker_nodes(cluster)) is cluster


@given(some_clusters, st.integers(1, 12))
def test_any_number_of_nodes_is_a_cluster_with_what_was_measured(cluster: ClusterSpec, number: int) -> None:
    found = extended(cluster, number)
    assert num_worker_nodes(found) == number
    workers = [node for node in cluster.nodes if node.role == "worker"]
    assert [node for node in found.nodes if node.role == "worker"][: len(workers)] == workers[:number]
    assert [one for one in found.nodes if one.role == "server"] == [n for n in cluster.nodes if n.role == "server"]
    assert {rack.name for rack in found.racks} <= {rack.name for rack in cluster.racks}
    assert (found.calibration is None) == (cluster.calibration is None)
    if found.calibration is not None and cluster.calibration is not None:
        assert {one.name for one in found.calibration.nodes} == {node.name for node in found.nodes}
        known = {one.name: one for one in cluster.calibration.nodes}
        assert all(known.get(one.name, one) == one for one in found.calibration.nodes)
    assert build_cluster({k: v for k, v in dump_cluster(found).items() if k != "schema"}) == found


@given(some_clusters, st.integers(1, 6))
def test_new_nodes_are_like_the_median(cluster: ClusterSpec, more: int) -> None:
    found = extended(cluster, num_worker_nodes(cluster) + more)
    workers = [node for node in cluster.nodes if node.role == "worker"]
    new = found.nodes[len(cluster.nodes) :]
    assert len(new) == more
    for node in new:
        assert node.bandwidth_out == median(one.bandwidth_out for one in workers)
        assert node.bandwidth_in == median(one.bandwidth_in for one in workers)
        assert node.devices in {one.devices for one in workers}
        if found.calibration is not None and cluster.calibration is not None:
            measured, known = found.calibration.node(node.name), cluster.calibration
            rates = [one.rate_out for one in known.nodes if one.name in {w.name for w in workers} and one.rate_out]
            assert measured is not None
            assert measured.rate_out is not None
            assert measured.rate_out.value == median(rate.value for rate in rates)
            assert measured.rate_out.low == min(rate.low for rate in rates)
            assert measured.interface is None


def test_new_nodes_have_the_median_speed_and_the_usual_number_of_interfaces() -> None:
    nodes = [
        Node(name=f"n{n}", host=f"n{n}", bandwidth_out=1e8, bandwidth_in=1e8, compute=speed, nics=nics)
        for n, (speed, nics) in enumerate([(1.0, 1), (0.5, 2), (0.5, 2)])
    ]
    cluster = ClusterSpec(name="mixed", nodes=tuple(nodes), launcher="ssh")
    new = extended(cluster, 4).nodes[-1]
    assert (new.compute, new.nics) == (0.5, 2)
    (words,) = assumptions(cluster, [4], None)
    assert "(1 rank, 800 Mbit/s, compute 0.5)" in words


@given(some_clusters, st.integers(1, 5), st.integers(1, 5))
def test_growing_twice_grows_as_far(cluster: ClusterSpec, first: int, second: int) -> None:
    there = num_worker_nodes(cluster)
    twice = extended(extended(cluster, there + first), there + first + second)
    assert twice.nodes == extended(cluster, there + first + second).nodes


def test_equal_nodes_stay_exchangeable() -> None:
    found = extended(load_cluster("4-hosts"), 8)
    (names,) = found.alike
    assert len(names) == 8
    assert found.num_workers == 8


def test_new_nodes_fill_the_racks_that_there_are_evenly() -> None:
    found = extended(load_cluster("4-hosts-2-racks"), 8)
    assert sorted(node.rack or "" for node in found.nodes) == sorted(
        rack.name for rack in found.racks for _ in range(4)
    )


def test_what_was_measured_on_all_nodes_together_is_not_claimed_for_others() -> None:
    cluster = _probed(load_cluster("4-hosts"))
    assert cluster.calibration is not None
    for number in (2, 8):
        found = extended(cluster, number).calibration
        assert found is not None
        assert (found.curves, found.step_seconds) == ((), None)


@given(some_clusters, st.floats(1e6, 1e10))
def test_other_links_keep_their_probed_share(cluster: ClusterSpec, rate: float) -> None:
    found = with_links(cluster, rate)
    assert {(node.bandwidth_out, node.bandwidth_in) for node in found.nodes} == {(rate, rate)}
    if found.calibration is not None:
        for one in found.calibration.nodes:
            assert one.rate_out is not None
            assert one.rate_out.value == pytest.approx(0.98 * rate)
            assert one.burst_out_bytes is None


@given(some_clusters)
def test_rate_ends_are_those_of_the_probe(cluster: ClusterSpec) -> None:
    ends = at_rate_ends(cluster)
    assert len(ends) == (0 if cluster.calibration is None else 2)
    for found, factor in zip(ends, (0.99, 1.02), strict=False):
        assert found.calibration is not None
        for node, one in zip(found.nodes, found.calibration.nodes, strict=True):
            assert one.rate_out is not None
            assert one.rate_out.value == pytest.approx(node.bandwidth_out * 0.98 * factor)
            assert one.latency_seconds == _around(1e-4)


def test_names_that_are_taken_are_not_given_again() -> None:
    nodes = tuple([Node(name=f"new-{n}", host=f"h{n}", bandwidth_out=1e8, bandwidth_in=1e8) for n in range(2)])
    found = extended(ClusterSpec(name="two", nodes=nodes, launcher="ssh"), 4)
    assert [node.name for node in found.nodes] == ["new-0", "new-1", "new-2", "new-3"]


def test_this_machine_does_not_grow() -> None:
    with pytest.raises(InputError, match="further nodes would not add"):
        extended(load_cluster("local-2"), 4)


@pytest.mark.parametrize("number", [0, -1, 5000])
def test_impossible_numbers_are_refused(number: int) -> None:
    with pytest.raises(InputError, match="1 to 4096 nodes"):
        extended(load_cluster("4-hosts"), number)


def test_assumptions_are_told() -> None:
    cluster = load_cluster("4-hosts")
    assert assumptions(cluster, [4], None) == ["All nodes are emulated on one machine and share its processors."]
    words = " ".join(assumptions(cluster, [2, 8], 1e9))
    assert "New nodes are like the median of the nodes of the cluster file (1 rank, 500 Mbit/s)." in words
    assert "Fewer than 4 nodes are the first ones" in words
    assert "All links have 8 Gbit/s" in words
    racks = (Rack(name="r", uplink_out=1e8, uplink_in=1e8),)
    nodes = (Node(name="a", host="a", rack="r", bandwidth_out=1e8, bandwidth_in=2e8),)
    (words,) = assumptions(ClusterSpec(name="one", nodes=nodes, racks=racks, launcher="ssh"), [2], None)
    assert "800 Mbit/s out, 1.6 Gbit/s in) and join the racks that there are" in words
