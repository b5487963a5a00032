"""Expectations are kept with trials, and survive files that were changed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP
from autosync.search.trust.expectation import Expectation, Expecting
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.testing.proposers import ground_of, message_counter_seconds

EXPECTATION = Expectation(log_seconds=math.log(0.1), spread=0.05, situation="later")


def test_an_expectation_is_kept_as_plain_values() -> None:
    assert Expectation.from_plain(EXPECTATION.to_plain()) == EXPECTATION


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
    ],
)
def test_what_is_no_expectation_counts_as_none(fields: object) -> None:
    assert Expectation.from_plain(fields) is None


def test_the_error_is_a_multiple_of_the_spread(make_record: Callable[..., Record]) -> None:
    measurement = make_record(0, STOCK_DDP, 0.1 * math.exp(0.1)).measurement
    assert measurement is not None
    assert EXPECTATION.error(measurement) == pytest.approx(2.0)


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
