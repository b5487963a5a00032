"""Shared uplinks become racks of the file, and sentences."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.trials.probe.findings import shared_links
from autosync.trials.probe.rack_search import RackSearch, SharedUplink, UplinkRate
from autosync.trials.probe.racks import alone_rates, sentence, with_found_racks

MBIT = 125_000.0

MakeCluster = Callable[..., ClusterSpec]


def about(value: float) -> Estimate:
    return Estimate(value=value, low=0.99 * value, high=1.01 * value)


def shared(together: float, in_sum: float, agreeing: int = 4) -> UplinkRate:
    return UplinkRate(together=about(together * MBIT), in_sum=about(in_sum * MBIT), num_agreeing=agreeing, num_rounds=4)


def calibrated(cluster: ClusterSpec) -> ClusterSpec:
    calibration = Calibration(
        measured_at="2026-01-01T00:00:00+00:00",
        autosync="0.1.0",
        torch="2.13.0",
        python="3.11.7",
        backend="gloo",
        emulated=True,
        cpu_share=0.3,
        nodes=tuple(
            NodeCalibration(name=node.name, rate_out=about(node.bandwidth_out), rate_in=about(node.bandwidth_in))
            for node in cluster.nodes
        ),
    )
    return replace(cluster, calibration=calibration)


def test_a_rack_has_the_measured_rates_and_loads_again(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = calibrated(make_cluster(*[500 * MBIT] * 5))
    uplink = SharedUplink(group=(3, 4), out=shared(480.04, 980), into=shared(700.4, 990))
    found = with_found_racks(cluster, RackSearch(uplinks=(uplink,), num_loads=30))
    (rack,) = found.racks
    assert (rack.uplink_out, rack.uplink_in) == (480 * MBIT, 700 * MBIT)
    assert [node.rack for node in found.nodes] == [None, None, None, "rack-1", "rack-1"]
    assert found.calibration is not None
    assert [one.name for one in found.calibration.racks] == ["rack-1"]
    save_cluster(tmp_path / "measured.yaml", found)
    assert load_cluster(tmp_path / "measured.yaml") == found


def test_a_direction_that_is_not_shared_has_the_sum_of_the_links(make_cluster: MakeCluster) -> None:
    cluster = calibrated(make_cluster(*[500 * MBIT] * 5))
    uplink = SharedUplink(group=(0, 1), out=None, into=shared(300, 980, agreeing=3))
    search = RackSearch(uplinks=(uplink,), num_loads=30)
    found = with_found_racks(cluster, search)
    assert (found.racks[0].uplink_out, found.racks[0].uplink_in) == (1000 * MBIT, 300 * MBIT)
    # What was not measured is not claimed to be.
    assert found.calibration is not None
    assert found.calibration.racks == ()
    assert sentence(cluster, uplink, search) == (
        "n0 and n1 share 300 Mbit/s from the others (one after another 980 Mbit/s in sum); "
        "towards the others they share nothing; likely: 3 of 4 measurements agree"
    )


def test_half_of_the_nodes_make_two_racks(make_cluster: MakeCluster) -> None:
    cluster = calibrated(make_cluster(*[500 * MBIT] * 4))
    uplink = SharedUplink(group=(0, 2), out=shared(480, 980), into=shared(700, 980))
    search = RackSearch(uplinks=(uplink,), num_loads=30)
    found = with_found_racks(cluster, search)
    assert [(rack.uplink_out / MBIT, rack.uplink_in / MBIT) for rack in found.racks] == [(480, 700), (700, 480)]
    assert [node.rack for node in found.nodes] == ["rack-1", "rack-2", "rack-1", "rack-2"]
    assert sentence(cluster, uplink, search).startswith(
        "n0 and n2 share 480 Mbit/s towards the others (one after another 980 Mbit/s in sum) and 700 Mbit/s from the"
    )
    assert sentence(cluster, uplink, search).endswith(
        "the others may as well share it, and become a rack too; sure: 8 of 8 measurements agree"
    )


def test_warnings_tell_of_racks_and_doubts(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(*[500 * MBIT] * 5)
    uplink = SharedUplink(group=(3, 4), out=shared(480, 980), into=None)
    search = RackSearch(uplinks=(uplink,), num_loads=30, doubt="something else is slow")
    told = list(shared_links(cluster, search))
    assert [one.kind for one in told] == ["shared_link", "unclear_links"]
    assert str(told[1]) == "whether nodes share links besides is unknown: something else is slow"
    assert list(shared_links(cluster, RackSearch(uplinks=(), num_loads=6))) == []


def test_rates_alone_are_known_only_if_all_nodes_were_measured(make_cluster: MakeCluster) -> None:
    calibration = calibrated(make_cluster(1e8, 2e8)).calibration
    assert calibration is not None
    alone = alone_rates(calibration)
    assert alone is not None
    assert alone.out == (1e8, 2e8)
    first = replace(calibration.nodes[0], rate_in=None)
    assert alone_rates(replace(calibration, nodes=(first, calibration.nodes[1]))) is None
