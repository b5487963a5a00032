"""Benchmarks hold by what they measured: not by nothing, not by what is no number, not by a figure unlike its rule."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosync.plan.bundling import bundled
from autosync.plan.traffic import amortised_traffic
from autosync.simulators.evaluation import Measured, accuracy_of
from autosync.strategy.representation import Message, Strategy
from benchmarks.collective_fit import collective_fit
from benchmarks.drift import drift
from benchmarks.exactness.exactness import Tally
from benchmarks.exactness.meaning import Meaning
from benchmarks.loops import hosts, time_to_loss
from benchmarks.published.published import holds_of
from benchmarks.simulator_accuracy import racks_and_stages
from benchmarks.speed.lowering_speed import is_in_time
from benchmarks.trust.trust import is_near
from benchmarks.tune_suite.tune_suite import is_met
from benchmarks.wire.bytes_on_the_wire import Case, judged
from tests.helpers.example_plans import ALL, Example, cluster_of, model_of

NAN = float("nan")


def test_a_loss_that_is_no_number_is_far_from_the_serial_runs() -> None:
    assert math.isnan(time_to_loss.most_off([1.0, NAN], [1.0, 1.0]))
    epochs = [{"loss": 1.0, "seconds": 1.0}, {"loss": NAN, "seconds": 2.0}]
    runs = {1: {"epochs": epochs[:1], "serial_losses": [1.0]}, 2: {"epochs": epochs, "serial_losses": [1.0, 1.0]}}
    found = hosts.compared("logistic_regression", runs)
    assert found["off"][1] == 0
    assert not found["most_off"] <= hosts.MOST_OFF


def test_a_parameter_that_is_no_number_is_far_from_what_is_meant() -> None:
    meaning = Meaning.__new__(Meaning)
    meaning._initial = {"first": np.zeros(2), "second": np.zeros(2)}
    expected = {"first": np.ones(2), "second": np.ones(2)}
    assert meaning._far(expected, expected) == 0
    assert math.isnan(meaning._far({**expected, "second": np.array([1.0, NAN])}, expected))


@pytest.mark.parametrize(
    ("holds", "failures", "met"),
    [([True, True], {}, True), ([True, False], {}, False), ([True, True], {"one": "it died"}, False)],
)
def test_tuning_meets_all_its_targets(holds: Sequence[bool], failures: dict[str, str], met: bool) -> None:
    document = {"targets": {"one": {}}, "failures": failures, "overall": {"holds": dict(enumerate(holds))}}
    assert is_met(document) is met
    assert not is_met({**document, "targets": {}})


def test_lowering_has_its_least_time_beside_its_target() -> None:
    slow = {"lower_seconds": {"least": 0.002, "median": 0.003}, "target_seconds": 0.001}
    assert not is_in_time(slow)
    assert is_in_time({**slow, "target_seconds": 0.002})
    assert is_in_time({**slow, "target_seconds": None})


def test_bytes_of_a_node_that_has_none_in_the_plan_count() -> None:
    cluster = cluster_of(1, 1, 0)
    example = Example(strategy=Strategy(messages=(Message(parts=ALL),)), model=model_of(), cluster=cluster)
    bundle = bundled(example.strategy, example.model, cluster)
    case = Case(name="all-reduce", task="small", bundle=bundle, plan=example.plan(), hand_off=False)
    planned = amortised_traffic(case.plan, cluster)
    assert planned.node_out[2] == 0
    counts = {"sent": list(planned.node_out), "received": list(planned.node_in)}
    assert judged(case, cluster, counts)["holds"]
    counts["sent"][2] = 0.03 * planned.node_out.max()
    assert not judged(case, cluster, counts)["holds"]


def _cell(share: float, gain: float) -> dict[str, Any]:
    """A cell of a fitted all-reduce, whose shares are certain and whose gain is not."""
    return {
        "share_of_bound": {"value": share, "low": share, "high": share},
        "least_share": 0.9,
        "over_best_of_before": {"value": gain, "low": gain - 0.2, "high": gain + 0.2},
    }


def test_a_fitted_all_reduce_is_judged_by_its_values() -> None:
    held = {share: collective_fit.verdicts(_cell(share, 1.0))["holds"]["share_of_bound"] for share in (0.89, 0.95, 1.1)}
    assert held == {0.89: False, 0.95: True, 1.1: False}
    held = {gain: collective_fit.verdicts(_cell(0.95, gain))["holds"]["not_slower"] for gain in (0.9, 0.996, 1.1)}
    assert held == {0.9: False, 0.996: True, 1.1: True}


def test_the_results_of_fitted_all_reduces_that_are_kept_are_judged_as_today() -> None:
    path = Path(collective_fit.__file__).with_name("results.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    found = collective_fit.Results(path).document()
    judgements = ("holds", "missed", "not_proven", "cells")
    assert {name: found[name] for name in judgements} == {name: kept[name] for name in judgements}


@pytest.mark.parametrize(("code", "holds"), [(None, True), (0, True), (1, False), (-9, False)])
def test_no_drift_is_reported_of_training_that_goes_on(code: int | None, holds: bool) -> None:
    case = {"case": "undisturbed", "reported": [], "exit_code": code}
    assert drift._holds(case) is holds
    assert not drift._holds({**case, "reported": ["7"]})


def test_what_was_not_measured_does_not_hold() -> None:
    near = {"above": 0.0, "worst_above": 0.0}
    assert is_near({"10 h": near}) is True
    assert is_near({"10 h": {**near, "worst_above": 0.05}}) is False
    assert is_near({"1 h": near}) is None
    assert not Tally().holds
    assert not holds_of([{"holds": None}])
    assert holds_of([{"holds": None}, {"holds": True}])
    assert not holds_of([{"holds": True}, {"holds": False}])
    assert racks_and_stages.holds({}) == {"trees": False, "stages": False}


@pytest.mark.parametrize(("count", "factor", "holds"), [(80, 1.04, True), (80, 1.06, False), (70, 1.04, False)])
def test_enough_strategies_are_predicted_well_on_two_combinations(count: int, factor: float, holds: bool) -> None:
    seconds = np.geomspace(0.1, 10.0, count)
    one = accuracy_of(Measured(seconds, 0.999 * seconds, 1.001 * seconds), factor * seconds)
    assert racks_and_stages.holds({"trees": {"a": one, "b": one}})["trees"] is holds
    assert not racks_and_stages.holds({"trees": {"a": one}})["trees"]
