"""Simulators by name: every one holds to the interface, and the conformance suite finds those that do not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest

from autosync.datasets.schema import Record
from autosync.errors import UnknownNameError
from autosync.simulators.catalogue import open_simulator, simulator_names
from autosync.simulators.interface import Prediction
from autosync.simulators.large_clusters import most_detailed, predictor_of
from autosync.simulators.timeline import scene_builder
from autosync.simulators.timeline.scene_builder import MOST_RANKS
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.testing.simulators import CHECKS, check_simulator, small_case, two_layers
from tests.helpers.example_plans import cluster_of


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", simulator_names())
def test_simulators_hold_to_the_interface(name: str, check: str) -> None:
    CHECKS[check](lambda model, cluster: open_simulator(name, model, cluster), small_case())


def test_an_unknown_name_lists_the_known_ones() -> None:
    case = small_case()
    with pytest.raises(UnknownNameError, match=r"unknown simulator 'timelin' .*timeline"):
        open_simulator("timelin", case.model, case.cluster)


def test_very_many_messages_are_predicted_in_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    model, large = two_layers(), cluster_of(*[1] * (MOST_RANKS + 1))
    ring, server = build_preset("ddp", model, large), build_preset("ps", model, large)
    monkeypatch.setattr(scene_builder, "FEW_MESSAGES", 0)
    found = open_simulator("timeline", model, large)
    played = found.predict([server, ring])
    monkeypatch.setattr(scene_builder, "MOST_MESSAGES", 100)
    closed = open_simulator("analytical", model, large).predict([server])
    # One rank's messages are enough for a ring.
    assert found.predict([server, ring]) == [*closed, played[1]]
    assert found.predict([ring, server]) == [played[1], *closed]
    assert closed[0] != played[0]


def test_very_many_messages_of_a_large_model_are_too_many_on_any_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    model, small = two_layers(), cluster_of(1, 1, 2)
    strategy = build_preset("ps", model, small)
    assert predictor_of(most_detailed(model, small), strategy) == "timeline"
    played = open_simulator("timeline", model, small).predict([strategy])
    monkeypatch.setattr(scene_builder, "MOST_MESSAGES", 100)
    found = most_detailed(model, small)
    assert predictor_of(found, strategy) == "analytical"
    closed = open_simulator("analytical", model, small).predict([strategy])
    assert found.predict([strategy]) == closed != played


def test_a_simulator_says_its_own_name() -> None:
    case = small_case()
    for name in simulator_names():
        assert open_simulator(name, case.model, case.cluster).name == name


class Counting:
    """A simulator that holds to the interface: it counts messages and learns how long one takes."""

    name = "counting"

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self.model, self.cluster = model, cluster
        self.one = 1.0

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        for strategy in strategies:
            legality.check(strategy, self.model, self.cluster)
        return [Prediction(seconds=self.one * len(strategy.messages), spread=0.1) for strategy in strategies]

    def learn(self, records: Sequence[Record]) -> None:
        found = [
            record.measurement.median_seconds / len(record.strategy["messages"])
            for record in records
            if record.measurement is not None and record.strategy is not None
        ]
        self.one = sum(found) / len(found) if found else 1.0


def test_the_suite_lets_a_good_one_pass() -> None:
    check_simulator(Counting)


class Silent(Counting):
    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return super().predict(strategies)[:-1]


class Negative(Counting):
    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [Prediction(seconds=-one.seconds) for one in super().predict(strategies)]


class Moody(Counting):
    ticks = itertools.count()

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [Prediction(seconds=one.seconds + next(self.ticks)) for one in super().predict(strategies)]


class Comparing(Counting):
    """Tells ranks, not seconds: who stands alone is always the first."""

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        found = [one.seconds for one in super().predict(strategies)]
        return [Prediction(seconds=1.0 + sorted(found).index(one)) for one in found]


class Literal(Counting):
    """Takes the order of the messages for something."""

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        super().predict(strategies)
        return [Prediction(seconds=float(len(one.messages[0].parts))) for one in strategies]


class Hoarding(Counting):
    """Learns the same trials again and again."""

    def learn(self, records: Sequence[Record]) -> None:
        self.one += 0.01 * len(records)


class Meddling(Counting):
    def learn(self, records: Sequence[Record]) -> None:
        if isinstance(records, list) and records:
            records.pop()


class Credulous(Counting):
    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [Prediction(seconds=self.one * len(strategy.messages)) for strategy in strategies]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (Silent, "predictions for"),
        (Negative, "predicts -"),
        (Moody, "two simulators of the same differ"),
        (Comparing, "alone"),
        (Literal, "equal strategies"),
        (Hoarding, "learned earlier"),
        (Meddling, "changes what it is given"),
        (Credulous, "another model"),
    ],
)
def test_the_suite_finds_what_is_wrong(bad: type[Counting], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_simulator(bad)


def test_the_case_has_something_to_learn_from() -> None:
    """Failures and stock trials among the records, strategies that are legal, and more than one class of them."""
    case = small_case()
    assert any(record.failure is not None for record in case.records)
    assert any(record.strategy is None for record in case.records)
    for strategy in case.strategies:
        assert not legality.problems(strategy, case.model, case.cluster)
    assert len({type(m.synchroniser) for s in case.strategies for m in s.messages}) > 3
    assert dataclasses.is_dataclass(case)
