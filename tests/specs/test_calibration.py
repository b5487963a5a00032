"""A calibration stands in the cluster file, reads back as it was, and changes nothing that plans are made of."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import documents
from autosync.errors import DocumentError, InputError
from autosync.plan.bound_terms import Rates, rates_of
from autosync.specs.calibration import Calibration, Curve, CurvePoint, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import dump_cluster, load_cluster, parse_cluster, save_cluster
from autosync.testbed.layout import cluster_key


@st.composite
def _estimates(draw: st.DrawFn) -> Estimate:
    low, value, high = sorted(draw(st.tuples(*[st.floats(0, 1e12)] * 3)))
    return Estimate(value=value, low=low, high=high)


_NODES = st.builds(
    NodeCalibration,
    name=st.just(""),
    rate_out=st.none() | _estimates(),
    rate_in=st.none() | _estimates(),
    burst_out_bytes=st.none() | _estimates(),
    latency_seconds=st.none() | _estimates(),
    compute_seconds=st.lists(_estimates(), max_size=3).map(tuple),
    interface=st.none() | st.sampled_from(["eth0", "ib0", "null"]),
)
_CURVES = st.builds(
    Curve,
    collective=st.just("all_reduce"),
    algorithm=st.sampled_from(["native", "ring"]),
    points=st.lists(st.builds(CurvePoint, num_bytes=st.integers(1, 2**40), seconds=_estimates()), max_size=3).map(
        tuple
    ),
)


@st.composite
def _clusters(draw: st.DrawFn) -> ClusterSpec:
    cluster = load_cluster(draw(st.sampled_from(["2-hosts", "16-hosts-2-racks"])))
    measured = draw(st.lists(_NODES, max_size=2))
    racks = tuple(
        RackCalibration(name=rack.name, rate_out=draw(_estimates()), rate_in=draw(_estimates()))
        for rack in cluster.racks
    )
    calibration = Calibration(
        measured_at="2026-01-01T00:00:00+00:00",
        autosync="0.1.0",
        torch="2.13.0+cpu",
        python="3.11.7",
        backend="gloo",
        emulated=draw(st.booleans()),
        cpu_share=draw(st.floats(0, 1)),
        step_seconds=draw(st.none() | _estimates()),
        step_variation=draw(st.none() | st.floats(0, 10)),
        nodes=tuple(replace(one, name=node.name) for one, node in zip(measured, cluster.nodes, strict=False)),
        racks=racks,
        curves=draw(st.lists(_CURVES, max_size=2).map(tuple)),
        num_processors=draw(st.none() | st.integers(1, 1024)),
    )
    return replace(cluster, calibration=calibration)


@given(_clusters())
def test_what_is_written_reads_back(cluster: ClusterSpec) -> None:
    for text in (documents.format_yaml(dump_cluster(cluster)), documents.format_json(dump_cluster(cluster))):
        assert parse_cluster(documents.parse_document(text, file="other.yaml")) == cluster


@given(_clusters())
def test_measuring_changes_nothing_that_plans_and_testbeds_are_made_of(cluster: ClusterSpec) -> None:
    bare = replace(cluster, calibration=None)
    assert cluster.fingerprint() == bare.fingerprint()
    assert cluster_key(cluster) == cluster_key(bare)


@given(_clusters())
def test_the_bound_takes_the_upper_ends(cluster: ClusterSpec) -> None:
    assert cluster.calibration is not None
    rates = rates_of(cluster)
    claimed = {node.name: (node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes}
    for node in cluster.calibration.nodes:
        out, into = claimed[node.name]
        assert rates.nodes[node.name] == (
            out if node.rate_out is None else node.rate_out.high,
            into if node.rate_in is None else node.rate_in.high,
        )
    for rack in cluster.calibration.racks:
        assert rack.rate_out is not None
        assert rack.rate_in is not None
        assert rates.racks[rack.name] == (rack.rate_out.high, rack.rate_in.high)
    assert rates_of(replace(cluster, calibration=None)) == Rates()


@pytest.mark.parametrize(("low", "value", "high"), [(2, 1, 3), (1, 3, 2), (-1, 0, 1), (0, 1, float("inf"))])
def test_an_estimate_lies_within_its_interval(low: float, value: float, high: float) -> None:
    with pytest.raises(ValueError, match="is no estimate"):
        Estimate(value=value, low=low, high=high)


FILE = """\
schema: autosync.cluster/1
nodes:
- {name: a, bandwidth: 1 Gbit/s}
calibration:
  measured_at: '2026-01-01T00:00:00+00:00'
  autosync: '0.1.0'
  torch: '2.13.0'
  python: '3.11.7'
  backend: gloo
  emulated: true
  cpu_share: 0.5
  nodes:
  - name: a
    rate_out: {value: 1.0, low: 0.5, high: 2.0}
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("- name: a\n", "- name: b\n", r"c\.yaml:13: calibration\.nodes\[0\]\.name: unknown node 'b' \(known: a\)"),
        ("  nodes:\n  - name: a\n", "  nodes:\n  - {name: a}\n  - name: a\n", r"c\.yaml:14: .*'a' is there twice"),
        ("low: 0.5", "low: 5.0", r"c\.yaml:14: calibration\.nodes\[0\]\.rate_out: .* is no estimate \(0 <= low"),
        ("cpu_share: 0.5", "cpu_share: 0.5\n  num_processors: 0", r"c\.yaml:\d+: .*num_processors: 0 is no number"),
        (
            "cpu_share: 0.5",
            "cpu_shar: 0.5",
            r"c\.yaml:11: calibration\.cpu_shar: unknown key .*did you mean 'cpu_share'",
        ),
        ("emulated: true", "emulated: 3", r"c\.yaml:10: calibration\.emulated: 3 is not allowed here"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE, encoding="utf-8")
    assert load_cluster(path).calibration is not None
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(DocumentError, match=told):
        load_cluster(path)


def test_a_cluster_built_in_code_is_held_to_the_same(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(FILE, encoding="utf-8")
    cluster = load_cluster(path)
    save_cluster(path, cluster)
    assert load_cluster(path) == cluster
    with pytest.raises(InputError, match="unknown node 'a'"):
        replace(cluster, nodes=(replace(cluster.nodes[0], name="other"),))
