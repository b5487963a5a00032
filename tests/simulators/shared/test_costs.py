"""What simulators believe of a cluster's processors: facts of the cluster, never of the machine that simulates."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from autosync.simulators.shared.costs import EMULATING_PROCESSORS, usual_costs
from autosync.specs.calibration import Calibration, Estimate, NodeCalibration
from autosync.specs.cluster_file import load_cluster
from autosync.specs.cost_profiles import CostChoice, cost_profile
from tests.helpers.example_plans import cluster_of

PROBED = Calibration(
    measured_at="2026-01-01T00:00:00+00:00",
    autosync="0.1.0",
    torch="2.13.0",
    python="3.11.7",
    backend="gloo",
    emulated=True,
    cpu_share=0.1,
    nodes=(),
)


@pytest.fixture(autouse=True)
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


@pytest.mark.parametrize(
    ("calibration", "num_processors"),
    [
        (None, EMULATING_PROCESSORS),
        (PROBED, EMULATING_PROCESSORS),
        (replace(PROBED, num_processors=8), 8),
        # Probed before the cluster's links were to be emulated.
        (replace(PROBED, emulated=False), None),
    ],
)
def test_nodes_of_an_emulated_cluster_share_as_many_as_were_counted(
    calibration: Calibration | None, num_processors: int | None
) -> None:
    cluster = replace(load_cluster("4-hosts"), calibration=calibration)
    assert usual_costs(cluster).num_processors == num_processors


def _probed(*seconds: float | None) -> Calibration:
    times = [None if one is None else Estimate(value=one, low=one, high=one) for one in seconds]
    nodes = [NodeCalibration(name=f"host-{n}", message_cpu_seconds=one) for n, one in enumerate(times)]
    return replace(PROBED, nodes=tuple(nodes))


def test_slow_processors_take_longer_for_all_work() -> None:
    cluster = load_cluster("4-hosts")
    usual = usual_costs(cluster)
    assert usual.probed_message_seconds is not None
    slow = _probed(*[2 * usual.probed_message_seconds] * 3, None)
    assert usual_costs(replace(cluster, calibration=slow)).processor == usual.processor.times(2)
    assert usual_costs(replace(cluster, calibration=_probed(None, None))).processor == usual.processor


def test_what_the_file_states_does_not_follow_the_probe() -> None:
    stated = CostChoice(figures=(("step", 0.5),))
    cluster = replace(load_cluster("4-hosts"), calibration=_probed(40e-6), costs=stated)
    assert usual_costs(cluster).processor.step == 0.5
    alone = CostChoice(figures=(("probed_message", None),))
    cluster = replace(cluster, costs=alone)
    assert usual_costs(cluster).processor == cost_profile("gloo-cpu").costs.processor


def test_real_nodes_have_their_own() -> None:
    assert usual_costs(cluster_of(1, 1)).num_processors is None
