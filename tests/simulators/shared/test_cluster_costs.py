"""Where the costs of a cluster come from, and that predictions follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.shared.uncontended import MemberPlace, seconds_alone
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.calibration import Calibration, Estimate, NodeCalibration
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cost_profiles import CostChoice, cost_profile
from autosync.strategy.presets import build_preset
from autosync.testing.simulators import two_layers
from tests.helpers.example_plans import cluster_of

SIMULATORS = (TimelineSimulator, AnalyticalSimulator)
PROBED = Calibration(
    measured_at="2026-01-01T00:00:00+00:00",
    autosync="0.1.0",
    torch="2.13.0",
    python="3.11.7",
    backend="gloo",
    emulated=False,
    cpu_share=0.1,
    nodes=(NodeCalibration(name="n0", latency_seconds=Estimate(value=2e-3, low=2e-3, high=2e-3)),),
)


def seconds(simulator: type[Simulator], cluster: ClusterSpec, preset: str = "ddp") -> float:
    model = two_layers()
    # Presets are the same for both backends here; servers are not legal on NCCL.
    strategy = build_preset(preset, model, replace(cluster, backend="gloo"))
    build: type = simulator
    (found,) = build(model, cluster).predict([strategy])
    return float(found.seconds)


def with_costs(cluster: ClusterSpec, profile: str | None = None, **figures: float | None) -> ClusterSpec:
    return replace(cluster, costs=CostChoice(profile=profile, figures=tuple(figures.items())))


def test_what_the_file_states_comes_before_what_the_probe_found() -> None:
    cluster = replace(cluster_of(1, 1), calibration=PROBED)
    assert usual_costs(cluster).hop_seconds > 1e-3
    assert usual_costs(with_costs(cluster, latency=1e-4)).hop_seconds == 1e-4


def test_a_probe_of_one_backend_says_nothing_of_another_one_s_messages() -> None:
    cluster = replace(cluster_of(1, 1), calibration=PROBED, backend="nccl")
    assert usual_costs(cluster).hop_seconds == cost_profile("nccl-pcie").costs.hop_seconds


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_the_backend_changes_predictions(simulator: type[Simulator]) -> None:
    """On fast links, where costs matter."""
    nodes = tuple(
        replace(node, bandwidth_out=1e11, bandwidth_in=1e11, intra_bandwidth=1e11) for node in cluster_of(2, 2).nodes
    )
    cluster = replace(cluster_of(2, 2), nodes=nodes)
    assert seconds(simulator, replace(cluster, backend="nccl")) < 0.97 * seconds(simulator, cluster)


@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("preset", ["ddp", "ps", "sharded", "all_reduce_per_variable"])
def test_the_usual_profile_named_changes_nothing(simulator: type[Simulator], preset: str) -> None:
    cluster = cluster_of(1, 1, 1)
    assert seconds(simulator, with_costs(cluster, "gloo-cpu"), preset) == seconds(simulator, cluster, preset)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_connection_carries_no_more_than_its_limit(simulator: type[Simulator]) -> None:
    """A ring leaves each node on one connection: half of a link for it is a link of half the rate."""
    cluster = cluster_of(2, 2, 2)
    half = replace(
        cluster,
        nodes=tuple(
            replace(one, bandwidth_out=one.bandwidth_out / 2, bandwidth_in=one.bandwidth_in / 2)
            for one in cluster.nodes
        ),
    )
    share = usual_costs(cluster).payload_share if simulator is TimelineSimulator else usual_costs(cluster).link_share
    limited = with_costs(cluster, flow_limit=cluster.nodes[0].bandwidth_out / 2 * share)
    assert seconds(simulator, limited) == pytest.approx(seconds(simulator, half), rel=0.02)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_several_connections_fill_a_link_that_one_does_not(simulator: type[Simulator]) -> None:
    cluster = cluster_of(1, 1, 1, 1)
    rate = cluster.nodes[0].bandwidth_out
    third = with_costs(cluster, flow_limit=rate / 3)
    assert seconds(simulator, third, "ps") < 1.3 * seconds(simulator, cluster, "ps")
    assert seconds(simulator, third) > 1.5 * seconds(simulator, cluster)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_servers_with_more_cores_add_up_faster(simulator: type[Simulator]) -> None:
    slow = with_costs(cluster_of(1, 1, 1, 1, 0), reduction_rate=5e6)
    fast = with_costs(cluster_of(1, 1, 1, 1, 0), reduction_rate=5e6, server_cores=64.0)
    assert seconds(simulator, fast, "ps") < 0.8 * seconds(simulator, slow, "ps")


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_servers_update_at_their_own_rate(simulator: type[Simulator]) -> None:
    usual = cluster_of(1, 1, 0)
    num_elements = sum(variable.num_elements for variable in two_layers().variables)
    slow = with_costs(usual, server_update_rate=num_elements / 5.0)
    assert seconds(simulator, slow, "ps") > seconds(simulator, usual, "ps") + 1.0


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_ranks_share_the_switch_of_their_node(simulator: type[Simulator]) -> None:
    """Of four ranks that send at once, each gets a quarter of what they share."""
    (node,) = cluster_of(4).nodes
    free = replace(cluster_of(4), nodes=(replace(node, intra_bandwidth=2e8),))
    shared = replace(free, nodes=(replace(node, intra_bandwidth=2e8, intra_total=2e8),))
    slower = replace(free, nodes=(replace(node, intra_bandwidth=5e7),))
    assert seconds(simulator, shared) > 1.5 * seconds(simulator, free)
    assert seconds(simulator, shared) == pytest.approx(seconds(simulator, slower), rel=0.1)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_data_for_the_network_passes_the_switch_too(simulator: type[Simulator]) -> None:
    plain = cluster_of(2, 2)
    nodes = tuple(replace(node, intra_bandwidth=1e9) for node in plain.nodes)
    free = replace(plain, nodes=nodes)
    # Each node sends and receives at 100 MB/s, and half as much again goes from rank to rank.
    shared = replace(plain, nodes=tuple(replace(node, intra_total=1e9) for node in nodes))
    narrow = replace(plain, nodes=tuple(replace(node, intra_bandwidth=1e8, intra_total=1e8) for node in nodes))
    assert seconds(simulator, shared) < 1.2 * seconds(simulator, free)
    assert seconds(simulator, narrow) > 1.5 * seconds(simulator, free)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_connection_uses_one_interface_and_nccl_all(simulator: type[Simulator]) -> None:
    one = cluster_of(2, 2, 2)
    two = replace(one, nodes=tuple(replace(node, nics=2) for node in one.nodes))
    assert seconds(simulator, two) > 1.5 * seconds(simulator, one)
    limit = one.nodes[0].bandwidth_out / 2
    over_nccl = [replace(with_costs(cluster, flow_limit=limit), backend="nccl") for cluster in (one, two)]
    assert seconds(simulator, over_nccl[0]) > 1.5 * seconds(simulator, over_nccl[1])


def test_trees_and_stars_keep_to_the_limit_of_a_connection() -> None:
    places = tuple(MemberPlace(node, 1e9, 1e9, 1e10) for node in range(4))
    assert seconds_alone("reduce", "star", places, 1e8) == pytest.approx(1e-8)
    assert seconds_alone("all_reduce", "ring", places, 1e8) == pytest.approx(1.5e-8)
    assert seconds_alone("all_reduce", "halving_doubling", places, 1e8) == pytest.approx(1.5e-8)
    assert seconds_alone("reduce", "star", places) == pytest.approx(3e-9)
