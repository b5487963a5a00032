"""Rates that the ends of a link limited are not recorded as the link's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.trials.probe.reach import node_reach, rack_reach, telling
from tests.helpers.probed_clusters import probed

MBIT = 125_000.0

MakeCluster = Callable[..., ClusterSpec]


def _racked(uplink: float, *, others: float = 4000.0) -> ClusterSpec:
    """Two racks of two hosts at 1000 Mbit/s each, with uplinks of these rates."""
    nodes = [
        Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e3 * MBIT, bandwidth_in=1e3 * MBIT, rack="ab"[i // 2])
        for i in range(4)
    ]
    rates = {"a": uplink * MBIT, "b": others * MBIT}
    racks = [Rack(name=name, uplink_out=rate, uplink_in=rate) for name, rate in rates.items()]
    return ClusterSpec(name="racked", nodes=tuple(nodes), racks=tuple(racks), launcher="testbed")


def _recorded(cluster: ClusterSpec, nodes: dict[str, float], racks: dict[str, float]) -> dict[str, float | None]:
    """What is recorded of measured rates in Mbit/s, by node and rack."""
    measured = probed(
        cluster,
        {name: rate * MBIT for name, rate in nodes.items()},
        {name: rate * MBIT for name, rate in racks.items()},
    ).calibration
    assert measured is not None
    found = telling(cluster, measured)
    rates = {one.name: one.rate_out for one in (*found.nodes, *found.racks)}
    return {name: None if rate is None else rate.value / MBIT for name, rate in rates.items()}


@pytest.mark.parametrize(
    ("wide", "measured", "recorded"),
    [
        # Three peers of 1000 Mbit/s take what the link gives.
        (3000, 2900, 2900),
        # They cannot take 10 Gbit/s, which the link may well have.
        (10_000, 2900, None),
        (10_000, 1500, 1500),
    ],
)
def test_a_link_wider_than_its_peers(
    make_cluster: MakeCluster, wide: float, measured: float, recorded: float | None
) -> None:
    cluster = make_cluster(wide * MBIT, *[1000 * MBIT] * 3)
    assert node_reach(cluster, 0, out=True) == 3000 * MBIT
    rates = _recorded(cluster, {"n0": measured, "n1": 990, "n2": 990, "n3": 990}, {})
    assert rates == {"n0": recorded, "n1": 990, "n2": 990, "n3": 990}


def test_peers_elsewhere_are_reached_over_the_uplink() -> None:
    cluster = _racked(300)
    # The other host of the rack, and the uplink.
    assert node_reach(cluster, 0, out=True) == 1300 * MBIT


def test_an_uplink_that_its_nodes_cannot_fill_is_not_recorded() -> None:
    """With more hosts in the rack it would carry more."""
    nodes = dict.fromkeys(("n0", "n1", "n2", "n3"), 980.0)
    assert _recorded(_racked(4000), nodes, {"a": 1940, "b": 1940}) == nodes
    assert _recorded(_racked(4000), nodes, {"a": 1200, "b": 1200}) == {**nodes, "a": 1200, "b": 1200}
    assert _recorded(_racked(1500), nodes, {"a": 1480, "b": 1480}) == {**nodes, "a": 1480}


def test_slow_nodes_do_not_make_their_uplink_slow() -> None:
    nodes = dict.fromkeys(("n0", "n1", "n2", "n3"), 700.0)
    assert _recorded(_racked(4000), nodes, {"a": 1400, "b": 1400}) == nodes


def test_the_other_end_of_a_narrow_uplink_is_not_recorded() -> None:
    cluster = _racked(500)
    nodes = dict.fromkeys(("n0", "n1", "n2", "n3"), 980.0)
    assert _recorded(cluster, nodes, {"a": 490, "b": 490}) == {**nodes, "a": 490}


def test_one_direction_may_tell_and_the_other_not() -> None:
    cluster = _racked(4000)
    racks = (replace(cluster.racks[0], uplink_in=500 * MBIT), cluster.racks[1])
    cluster = replace(cluster, racks=racks)
    measured = probed(cluster, {}, {"a": 480 * MBIT}).calibration
    assert measured is not None
    rate = measured.racks[0].rate_in
    assert rate is not None
    full = replace(measured.racks[0], rate_out=replace(rate, value=1940 * MBIT, low=1940 * MBIT, high=1940 * MBIT))
    (rack,) = telling(cluster, replace(measured, racks=(full,))).racks
    assert (rack.rate_out, rack.rate_in) == (None, rate)
    assert rack_reach(cluster, measured, 0, out=True) == 2000 * MBIT
