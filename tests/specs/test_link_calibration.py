"""Rates that another backend measured raise those of the file, and never lower them."""

from __future__ import annotations

from dataclasses import replace

from autosync.plan.bound_terms import rates_of
from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import BackendName, ClusterSpec, Node, Rack
from autosync.specs.link_calibration import measured_node, measured_racks


def _about(rate: float) -> Estimate:
    return Estimate(value=rate, low=0.9 * rate, high=1.1 * rate)


def _cluster(backend: BackendName) -> ClusterSpec:
    """Links of 100 that gloo measured: one slower out and faster in, an uplink likewise, ranks within a node slower."""
    node = Node(name="a", host="a", devices=2, bandwidth_out=100.0, bandwidth_in=100.0)
    node = replace(node, intra_bandwidth=1000.0, rack="r")
    measured = NodeCalibration(name="a", rate_out=_about(40.0), rate_in=_about(200.0), rate_within=_about(300.0))
    return ClusterSpec(
        name="c",
        launcher="ssh",
        backend=backend,
        nodes=(node, replace(node, name="b", host="b", intra_bandwidth=None, rack=None)),
        racks=(Rack(name="r", uplink_out=50.0, uplink_in=50.0),),
        calibration=Calibration(
            measured_at="",
            autosync="",
            torch="",
            python="",
            backend="gloo",
            emulated=False,
            cpu_share=0.0,
            nodes=(measured, NodeCalibration(name="b", rate_within=_about(300.0))),
            racks=(RackCalibration(name="r", rate_out=_about(20.0), rate_in=_about(80.0)),),
        ),
    )


def test_the_same_backend_counts() -> None:
    cluster = _cluster("gloo")
    assert cluster.calibration is not None
    assert measured_node(cluster, "a") == cluster.calibration.nodes[0]
    assert measured_racks(cluster)["r"] == cluster.calibration.racks[0]
    rates = rates_of(cluster)
    assert rates.nodes == {"a": (_about(40.0).high, _about(200.0).high), "b": (100.0, 100.0)}
    assert rates.racks == {"r": (_about(20.0).high, _about(80.0).high)}


def test_another_backend_may_do_better_but_no_worse() -> None:
    cluster = _cluster("nccl")
    node, rack = measured_node(cluster, "a"), measured_racks(cluster)["r"]
    assert node is not None
    assert (node.rate_out, node.rate_in, node.rate_within) == (None, _about(200.0), None)
    assert (rack.rate_out, rack.rate_in) == (None, _about(80.0))
    # The file says nothing of the links within b, and gloo's loopback is none of them.
    other = measured_node(cluster, "b")
    assert other is not None
    assert other.rate_within is None
    rates = rates_of(cluster)
    assert rates.nodes == {"a": (100.0, _about(200.0).high), "b": (100.0, 100.0)}
    assert rates.racks == {"r": (50.0, _about(80.0).high)}


def test_without_a_probe_nothing_is_measured() -> None:
    cluster = replace(_cluster("nccl"), calibration=None)
    assert measured_node(cluster, "a") is None
    assert measured_racks(cluster) == {}
