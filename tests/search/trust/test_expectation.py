"""Expectations are kept with trials, and survive files that were changed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP, candidate
from autosync.search.trust.expectation import Expectation, Expecting, steps_each_expected
from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_cost import InputCost
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.testing.proposers import ground_of, message_counter_seconds

EXPECTATION = Expectation(log_seconds=math.log(0.1), spread=0.05, situation="later")


def test_an_expectation_is_kept_as_plain_values() -> None:
    for one in (EXPECTATION, replace(EXPECTATION, steps_each=8)):
        assert Expectation.from_plain(one.to_plain()) == one


def test_expectations_of_older_studies_are_read() -> None:
    fields = {"log_seconds": EXPECTATION.log_seconds, "spread": EXPECTATION.spread, "situation": "later"}
    assert Expectation.from_plain(fields) == EXPECTATION


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {**EXPECTATION.to_plain(), "spread": 0.0},
        {**EXPECTATION.to_plain(), "spread": "wide"},
        {**EXPECTATION.to_plain(), "log_seconds": math.nan},
        {**EXPECTATION.to_plain(), "situation": "never"},
        {**EXPECTATION.to_plain(), "more": 1},
        {**EXPECTATION.to_plain(), "steps_each": 0},
        {**EXPECTATION.to_plain(), "steps_each": "two"},
        {**EXPECTATION.to_plain(), "steps_each": 65},
    ],
)
def test_what_is_no_expectation_counts_as_none(fields: object) -> None:
    assert Expectation.from_plain(fields) is None


def test_the_error_is_a_multiple_of_the_spread() -> None:
    assert EXPECTATION.error(math.log(0.1) + 0.1) == pytest.approx(2.0)


def test_expectations_learn_from_the_errors_of_trials(
    model: ModelSpec, cluster: ClusterSpec, make_record: Callable[..., Record]
) -> None:
    ground = ground_of(model, cluster)
    candidates = list(ground.known)
    expecting = Expecting(ground)
    before = expecting.of([], [STOCK_DDP, *candidates])
    assert set(before) == {one.strategy_id for one in candidates}
    assert {one.situation for one in before.values()} == {"first"}
    history = [
        make_record(number, one, 1.5 * message_counter_seconds(one.strategy))
        for number, one in enumerate(candidates[1:])
        if one.strategy is not None
    ]
    after = expecting.of(history, candidates[:1])[candidates[0].strategy_id]
    assert after.situation == "later"
    assert after.seconds == pytest.approx(1.5 * before[candidates[0].strategy_id].seconds, rel=0.02)
    assert expecting.of(history, candidates[:1]) == {candidates[0].strategy_id: after}


def test_it_is_known_of_how_many_steps_a_trial_makes_a_sample(model: ModelSpec, cluster: ClusterSpec) -> None:
    averaging = candidate("x", build_preset("local_sgd", model, cluster, every=4), model, cluster)
    assert averaging.strategy is not None
    expected = Expecting(ground_of(model, cluster)).of([], [averaging])
    assert expected[averaging.strategy_id].steps_each == 4
    reading = replace(model, input=InputCost(by_loader=True, stated=InputSettings(num_workers=6)))
    assert steps_each_expected(averaging.strategy, reading) == 12
    assert steps_each_expected(replace(averaging.strategy, input=InputSettings(num_workers=0)), reading) == 4
    assert steps_each_expected(averaging.strategy, replace(reading, accumulation_steps=3)) == 4
