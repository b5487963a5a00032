"""Links are compared with their file and with each other, and uplinks with the links behind them."""

from __future__ import annotations

from dataclasses import replace

from autosync.doctor.links import link_rates
from autosync.specs.cluster import ClusterSpec, Node, Rack
from tests.helpers.probed_clusters import probed


def _cluster(*rates: float, racks: tuple[Rack, ...] = ()) -> ClusterSpec:
    names = [rack.name for rack in racks] or [None]
    nodes = tuple(
        Node(name=f"n{i}", host=f"h{i}", bandwidth_out=rate, bandwidth_in=rate, rack=names[i % len(names)])
        for i, rate in enumerate(rates)
    )
    return ClusterSpec(name="c", nodes=nodes, racks=racks, launcher="testbed")


def _slowest(cluster: ClusterSpec) -> tuple[str, float, str]:
    found = min(link_rates(cluster), key=lambda link: link.rate / link.expected)
    return found.subject, found.rate / found.expected, found.compared


def test_a_link_below_its_file() -> None:
    cluster = probed(_cluster(1e9, 1e9, 1e9), {"n0": 1e9, "n1": 4e8, "n2": 1e9}, {})
    assert _slowest(cluster) == ("n1", 0.4, "its file says")


def test_a_link_below_the_others() -> None:
    assert _slowest(_cluster(1e9, 1e9, 5e8, 1e9)) == ("n2", 0.5, "the others have")


def test_with_two_nodes_the_other_end_proves_nothing() -> None:
    assert _slowest(_cluster(1e9, 5e8))[1] == 1


def test_an_uplink_below_the_nodes_behind_it() -> None:
    racks = (Rack(name="east", uplink_out=1e9, uplink_in=1e9), Rack(name="west", uplink_out=4e8, uplink_in=4e8))
    assert _slowest(_cluster(1e9, 1e9, 1e9, 1e9, racks=racks)) == ("west", 0.4, "the nodes behind it have")


def test_a_measured_uplink_below_its_file() -> None:
    racks = (Rack(name="east", uplink_out=1e9, uplink_in=1e9), Rack(name="west", uplink_out=1e9, uplink_in=1e9))
    cluster = _cluster(1e9, 1e9, 1e9, 1e9, racks=racks)
    rates = {f"n{number}": 1e9 for number in range(4)}
    assert _slowest(probed(cluster, rates, {"east": 2e8, "west": 1e9})) == ("east", 0.2, "its file says")


def test_the_other_end_of_a_slow_uplink_is_not_blamed() -> None:
    racks = (Rack(name="east", uplink_out=2e9, uplink_in=2e9), Rack(name="west", uplink_out=4e8, uplink_in=4e8))
    cluster = _cluster(1e9, 1e9, 1e9, 1e9, racks=racks)
    rates = {f"n{number}": 1e9 for number in range(4)}
    assert _slowest(probed(cluster, rates, {"east": 4e8, "west": 4e8})) == ("west", 0.4, "the nodes behind it have")


def test_an_uplink_that_its_nodes_cannot_fill_is_not_slow() -> None:
    racks = tuple(Rack(name=name, uplink_out=4e9, uplink_in=4e9) for name in ("east", "west"))
    cluster = _cluster(1e9, 1e9, 1e9, racks=racks)
    measured = probed(cluster, {f"n{number}": 1e9 for number in range(3)}, {"east": 1e9, "west": 1e9})
    assert _slowest(measured)[1] == 1
    assert {link.compared for link in link_rates(measured) if link.kind == "uplink"} == {
        "the nodes at both ends could pass"
    }


def test_a_rack_that_holds_the_whole_cluster_has_no_slow_uplink() -> None:
    racks = (Rack(name="east", uplink_out=1e9, uplink_in=1e9),)
    assert _slowest(_cluster(1e9, 1e9, racks=racks))[1] == 1


def test_links_that_only_serve_are_not_judged() -> None:
    """Stock DDP sends nothing to servers, so neither their links count nor the uplinks behind which no others are."""
    racks = tuple(Rack(name=name, uplink_out=1e9, uplink_in=1e9) for name in ("east", "west"))
    fast = _cluster(1e9, 1e9, 1e9, 1e9, racks=racks)
    slow = replace(fast.nodes[3], role="server", devices=0, bandwidth_out=1e8, bandwidth_in=1e8)
    served = replace(fast, nodes=(*fast.nodes[:3], slow))
    assert _slowest(served)[1] == 1
    store = Rack(name="store", uplink_out=1e8, uplink_in=1e8)
    served = replace(served, nodes=(*fast.nodes[:3], replace(slow, rack="store")), racks=(*racks, store))
    assert {link.subject for link in link_rates(served)} == {"n0", "n1", "n2", "east", "west"}
    assert _slowest(served)[1] == 1
    alone = replace(served, nodes=tuple(replace(node, rack="east") for node in fast.nodes[:3]) + served.nodes[3:])
    assert {link.subject for link in link_rates(alone)} == {"n0", "n1", "n2"}
