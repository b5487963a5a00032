"""The busiest link of a measured step: uplinks of racks and the insides of nodes count as interfaces do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.datasets.schema import Measurement
from autosync.plan.lowering import lower
from autosync.plan.traffic import amortised_traffic
from autosync.search.headroom import time_shares
from autosync.search.link_times import busiest_link
from autosync.specs.calibration import Calibration, Estimate, RackCalibration
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer

RATE = 1e6


def _node(name: str, rack: str | None, *, role: str = "worker", devices: int = 1) -> Node:
    is_server = role == "server"
    return Node(
        name=name,
        host=name,
        rack=rack,
        role="server" if is_server else "worker",
        devices=0 if is_server else devices,
        bandwidth_out=RATE,
        bandwidth_in=RATE,
    )


RACKS = ClusterSpec(
    name="racks",
    nodes=(_node("p0", "r1"), _node("p1", "r1"), _node("p2", "r1"), _node("q0", "r2"), _node("q1", "r2")),
    racks=(
        Rack(name="r1", uplink_out=RATE / 2, uplink_in=RATE),
        Rack(name="r2", uplink_out=RATE, uplink_in=RATE / 1.5),
    ),
)


def _measured(seconds: float, sent: tuple[int, ...], received: tuple[int, ...] | None = None) -> Measurement:
    return Measurement(
        step_seconds=tuple((seconds,) for _ in sent),
        median_seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        num_warmup_steps=4,
        peak_memory_bytes=tuple(1 for _ in sent),
        bytes_sent=sent,
        bytes_received=received or sent,
    )


def _planned(model: ModelSpec, cluster: ClusterSpec, preset: str = "ddp") -> tuple[int, ...]:
    traffic = amortised_traffic(lower(build_preset(preset, model, cluster), model, cluster), cluster)
    return tuple(round(number) for number in traffic.node_out)


def test_a_saturated_uplink_is_no_waiting_with_idle_links(model: ModelSpec) -> None:
    """What leaves rack r1 passes a link half as fast as the interfaces, so that is busy for twice as long."""
    sent = _planned(model, RACKS)
    uplink = busiest_link(_measured(1.0, sent), model, RACKS, None)
    assert uplink is not None
    assert uplink.link == "uplink of rack r1, out"
    assert uplink.seconds == pytest.approx(2 * sent[2] / RATE, rel=1e-3)
    # The step takes as long as the uplink, and its compute: with interfaces alone half of it would be told as idle.
    step = uplink.seconds + model.step_seconds
    shares = time_shares(_measured(step, sent), model, RACKS, None)
    assert shares.idle == pytest.approx(0.0, abs=1e-9)
    assert shares.exposed == pytest.approx(uplink.seconds)
    assert f"waiting with nothing busy 0 s, uplink of rack r1, out: {uplink.seconds / step:.0%} busy" in str(shares)


def test_the_other_direction_counts_too(model: ModelSpec) -> None:
    wide = replace(RACKS, racks=(replace(RACKS.racks[0], uplink_out=RATE), RACKS.racks[1]))
    found = busiest_link(_measured(1.0, _planned(model, wide)), model, wide, None)
    assert found is not None
    assert found.link == "uplink of rack r2, in"


def test_what_interfaces_counted_beyond_the_plan_passes_the_uplink_too(model: ModelSpec) -> None:
    sent = _planned(model, RACKS)
    exact = busiest_link(_measured(1.0, sent), model, RACKS, None)
    more = busiest_link(_measured(1.0, tuple(round(1.5 * one) for one in sent)), model, RACKS, None)
    assert exact is not None
    assert more is not None
    assert more.seconds == pytest.approx(1.5 * exact.seconds, rel=1e-3)


def test_a_probed_uplink_has_the_rate_that_was_measured(model: ModelSpec) -> None:
    rate = Estimate(value=RATE / 4, low=RATE / 5, high=RATE / 3)
    calibration = Calibration(
        measured_at="",
        autosync="",
        torch="",
        python="",
        backend="gloo",
        emulated=False,
        cpu_share=0.0,
        nodes=(),
        racks=(RackCalibration(name="r1", rate_out=rate, rate_in=rate),),
    )
    sent = _planned(model, RACKS)
    found = busiest_link(_measured(1.0, sent), model, replace(RACKS, calibration=calibration), None)
    assert found is not None
    assert found.seconds == pytest.approx(4 * sent[2] / RATE, rel=1e-3)


def test_the_strategy_decides_what_passes_an_uplink(model: ModelSpec) -> None:
    """A server in rack r1 is told by both ranks of r2, and tells them, over r2's uplink."""
    names = tuple(variable.name for variable in model.variables)
    served = Strategy(messages=(Message(parts=names, synchroniser=ParameterServer(server="p0")),))
    traffic = amortised_traffic(lower(served, model, RACKS), RACKS)
    slow = replace(RACKS, racks=tuple(replace(rack, uplink_out=1e4, uplink_in=1e4) for rack in RACKS.racks))
    measured = _measured(1.0, tuple(map(round, traffic.node_out.tolist())), tuple(map(round, traffic.node_in.tolist())))
    found = busiest_link(measured, model, slow, served)
    assert found is not None
    assert found.seconds == pytest.approx(max(*traffic.rack_out, *traffic.rack_in) / 1e4, rel=1e-3)
    assert found.seconds == pytest.approx(2 * model.num_bytes / 1e4, rel=1e-3)


def test_the_inside_of_a_node_counts_where_its_rate_is_known(model: ModelSpec) -> None:
    nodes = tuple(replace(_node(name, None, devices=4), intra_bandwidth=1e4) for name in ("a", "b"))
    cluster = ClusterSpec(name="two", nodes=nodes)
    ring = Strategy(
        messages=(
            Message(
                parts=tuple(variable.name for variable in model.variables), synchroniser=AllReduce(topology="ring")
            ),
        )
    )
    found = busiest_link(_measured(1.0, (100,) * 8), model, cluster, ring)
    assert found is not None
    assert found.link == "inside of a"
    # Three of a node's four ranks send to their neighbours on it.
    assert found.seconds == pytest.approx(3 / 4 * 2 * 7 / 8 * model.num_bytes / 1e4, rel=1e-2)
    unknown = ClusterSpec(name="two", nodes=tuple(replace(node, intra_bandwidth=None) for node in nodes))
    other = busiest_link(_measured(1.0, (100,) * 8), model, unknown, ring)
    assert other is not None
    assert other.link == "interface of a, out"


def test_what_the_ranks_of_a_node_share_is_passed_on_the_way_to_the_network_too(model: ModelSpec) -> None:
    nodes = tuple(replace(_node(name, None, devices=4), intra_total=1e4) for name in ("a", "b"))
    cluster = ClusterSpec(name="two", nodes=nodes)
    parts = tuple(variable.name for variable in model.variables)
    ring = Strategy(messages=(Message(parts=parts, synchroniser=AllReduce(topology="ring")),))
    found = busiest_link(_measured(1.0, (1000,) * 8), model, cluster, ring)
    within = amortised_traffic(lower(ring, model, cluster), cluster).node_within[0]
    assert found is not None
    assert found.link == "inside of a"
    assert found.seconds == pytest.approx((within + 2 * 1000) / 1e4)


def test_what_leaves_a_rack_does_not_pass_what_ranks_share(model: ModelSpec) -> None:
    nodes = (replace(_node("p", "r1"), intra_total=1e3), replace(_node("q", "r2"), intra_total=1e3))
    racks = tuple(Rack(name=name, uplink_out=RATE, uplink_in=RATE) for name in ("r1", "r2"))
    apart = ClusterSpec(name="apart", nodes=nodes, racks=racks)
    together = ClusterSpec(name="together", nodes=tuple(replace(node, rack=None) for node in nodes))
    sent = _planned(model, apart)
    found, other = (busiest_link(_measured(1.0, sent), model, one, None) for one in (apart, together))
    assert found is not None
    assert not found.link.startswith("inside of")
    assert other is not None
    assert other.link == "inside of p"
    assert other.seconds == pytest.approx(2 * sent[0] / 1e3)
