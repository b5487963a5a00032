"""After a drift the cluster has the measured rates of the links that are slower than it says, and keeps the others."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from autosync.errors import OperationError
from autosync.script_tuning import changed_links
from autosync.script_tuning.changed_links import with_measured_links, with_slower_links
from autosync.specs.calibration import Calibration, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec, Node, Rack

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
CLUSTER = ClusterSpec(
    name="c",
    launcher="testbed",
    nodes=(_node(name="a", host="h0", rack="r"), _node(name="b", host="h1", rack="r"), _node(name="d", host="h2")),
    racks=(Rack(name="r", uplink_out=5e7, uplink_in=5e7),),
)


def _about(rate: float) -> Estimate:
    return Estimate(value=rate, low=0.99 * rate, high=1.01 * rate)


def _calibration(nodes: dict[str, tuple[float, float]], racks: dict[str, tuple[float, float]]) -> Calibration:
    return Calibration(
        measured_at="2026-01-01T00:00:00+00:00",
        autosync="0",
        torch="0",
        python="0",
        backend="gloo",
        emulated=False,
        cpu_share=0.1,
        nodes=tuple(
            NodeCalibration(name=name, rate_out=_about(out), rate_in=_about(into))
            for name, (out, into) in nodes.items()
        ),
        racks=tuple(
            RackCalibration(name=name, rate_out=_about(out), rate_in=_about(into))
            for name, (out, into) in racks.items()
        ),
    )


def test_a_slower_link_is_found_and_told() -> None:
    measured = _calibration({"a": (9.5e7, 9.5e7), "b": (4.8e7, 9.5e7), "d": (9.5e7, 9.5e7)}, {"r": (4.7e7, 2e7)})
    found, words = with_slower_links(CLUSTER, measured)
    assert words == ["b out: 384 Mbit/s instead of 800 Mbit/s", "r into the rack: 160 Mbit/s instead of 400 Mbit/s"]
    assert [(node.bandwidth_out, node.bandwidth_in) for node in found.nodes] == [(1e8, 1e8), (4.8e7, 1e8), (1e8, 1e8)]
    assert (found.racks[0].uplink_out, found.racks[0].uplink_in) == (5e7, 2e7)
    assert found.calibration is None


def test_nothing_changes_where_all_links_are_as_fast_as_before() -> None:
    measured = _calibration(dict.fromkeys("abd", (9.5e7, 2e8)), {"r": (4.9e7, 4.9e7)})
    assert with_slower_links(CLUSTER, measured) == (CLUSTER, [])


def test_nodes_that_were_declared_alike_may_drift_apart() -> None:
    measured = _calibration({"a": (9.5e7, 9.5e7), "b": (4.8e7, 9.5e7), "d": (9.5e7, 9.5e7)}, {})
    nodes = tuple(replace(node, rack=None) for node in CLUSTER.nodes)
    found, _ = with_slower_links(replace(CLUSTER, nodes=nodes, racks=(), alike=(("a", "b", "d"),)), measured)
    assert [node.bandwidth_out for node in found.nodes] == [1e8, 4.8e7, 1e8]
    assert found.alike == (("a", "d"),)


def test_an_earlier_calibration_keeps_the_rest() -> None:
    before = _calibration(dict.fromkeys("abd", (9.4e7, 9.4e7)), {"r": (4.9e7, 4.9e7)})
    costs = tuple(replace(one, message_seconds=_about(1e-4)) for one in before.nodes)
    measured = _calibration({"a": (9.5e7, 4e7), "b": (9.5e7, 9.5e7), "d": (9.5e7, 9.5e7)}, {"r": (4.8e7, 4.8e7)})
    found, _ = with_slower_links(replace(CLUSTER, calibration=replace(before, nodes=costs)), measured)
    assert found.calibration is not None
    first = found.calibration.nodes[0]
    assert first.rate_in == _about(4e7)
    assert first.message_seconds == _about(1e-4)


@pytest.fixture
def told() -> list[str]:
    return []


def test_links_that_cannot_be_measured_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OperationError("no ranks")

    monkeypatch.setattr(changed_links, "probe", fails)
    note: Callable[[str], None] = told.append
    assert with_measured_links(CLUSTER, note) is CLUSTER
    assert told == ["the links could not be measured, so their rates are taken from the cluster file: no ranks"]


def test_one_machine_has_no_links_to_measure(told: list[str]) -> None:
    alone = replace(CLUSTER, nodes=CLUSTER.nodes[:1], racks=CLUSTER.racks[:1])
    here = replace(CLUSTER, launcher="local")
    assert with_measured_links(alone, told.append) is alone
    assert with_measured_links(here, told.append) is here
    assert told == []


def test_a_probe_says_nothing_of_a_faster_backend(told: list[str]) -> None:
    fast = replace(CLUSTER, backend="nccl")
    assert with_measured_links(fast, told.append) is fast
    assert told == ["the links are not measured: a probe uses gloo, and nccl may be faster than it"]
