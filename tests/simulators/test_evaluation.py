"""Metrics do what their names say, whatever the measurements."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.datasets.schema import Flag, Measurement, Record
from autosync.simulators.evaluation import (
    Measured,
    accuracy_of,
    clear_pairs,
    mean_accuracy,
    measured_of,
    measured_of_trials,
    noise_of,
)

_seconds = st.floats(0.01, 10.0)
_shares = st.floats(0.0, 0.2)


def _measured(rows: list[tuple[float, float]]) -> Measured:
    seconds, shares = (np.array(column) for column in zip(*rows, strict=True))
    return Measured(seconds, seconds * (1 - shares), seconds * (1 + shares))


def _measurement(seconds: float, low: float, high: float, flags: tuple[Flag, ...] = ()) -> Measurement:
    return Measurement(
        step_seconds=((seconds,),),
        median_seconds=seconds,
        low_seconds=low,
        high_seconds=high,
        num_warmup_steps=3,
        peak_memory_bytes=(1,),
        flags=flags,
    )


def _record(seconds: float, *, strategy: str = "s", flags: tuple[Flag, ...] = ()) -> Record:
    return Record(
        study="s",
        trial=0,
        origin="sampled",
        model_name="m",
        model_fingerprint="m",
        cluster_name="c",
        cluster_fingerprint="c",
        strategy={"name": strategy},
        strategy_id=strategy,
        classes=("exact",),
        measurement=_measurement(seconds, seconds, seconds, flags),
        environment={},
        compute="replayed",
        network="emulated",
        started="2026-01-31T12:00:00+00:00",
    )


_rows = st.lists(st.tuples(_seconds, _shares), min_size=1, max_size=25)


@given(rows=_rows)
def test_the_truth_is_a_perfect_prediction(rows: list[tuple[float, float]]) -> None:
    measured = _measured(rows)
    found = accuracy_of(measured, measured.seconds)
    assert found.num_strategies == len(rows)
    assert found.pair_ranking in (1.0, None)
    assert (found.pair_ranking is None) == (found.num_pairs == 0)
    assert found.kendall_tau is None or found.kendall_tau == pytest.approx(1.0)
    assert (found.median_error, found.p90_error, found.top_regret, found.top5_regret) == (0.0, 0.0, 0.0, 0.0)


@given(rows=_rows)
def test_the_opposite_is_always_wrong(rows: list[tuple[float, float]]) -> None:
    measured = _measured(rows)
    found = accuracy_of(measured, 1 / measured.seconds)
    assert found.pair_ranking in (0.0, None)
    assert found.kendall_tau is None or found.kendall_tau == pytest.approx(-1.0)
    assert found.top_regret == pytest.approx(measured.seconds.max() / measured.seconds.min() - 1)


@given(rows=_rows)
def test_saying_nothing_gains_nothing(rows: list[tuple[float, float]]) -> None:
    measured = _measured(rows)
    found = accuracy_of(measured, np.ones(len(rows)))
    assert found.pair_ranking in (0.5, None)
    assert found.kendall_tau is None
    assert found.top_regret == pytest.approx(measured.seconds.max() / measured.seconds.min() - 1)


@given(rows=_rows, data=st.data())
def test_only_the_order_counts_and_not_that_of_the_list(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    measured = _measured(rows)
    predicted = np.array(data.draw(st.lists(_seconds, min_size=len(rows), max_size=len(rows))))
    mixed = np.array(data.draw(st.permutations(range(len(rows)))))
    found = accuracy_of(measured, predicted)
    again = accuracy_of(Measured(*(column[mixed] for column in measured)), predicted[mixed])
    for name in ("num_pairs", "pair_ranking", "kendall_tau", "median_error", "p90_error", "top_regret", "top5_regret"):
        assert getattr(again, name) == pytest.approx(getattr(found, name)), name
    stretched = accuracy_of(measured, 3 * predicted)
    for name in ("pair_ranking", "kendall_tau", "top_regret", "top5_regret"):
        assert getattr(stretched, name) == pytest.approx(getattr(found, name)), name


@given(rows=_rows, data=st.data())
def test_pairs_are_counted_one_by_one(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    measured = _measured(rows)
    predicted = np.array(data.draw(st.lists(_seconds, min_size=len(rows), max_size=len(rows))))
    right, num_pairs = 0.0, 0
    for one, other in itertools.combinations(range(len(rows)), 2):
        first, second = sorted((one, other), key=lambda row: measured.seconds[row])
        if measured.high[first] < measured.low[second]:
            num_pairs += 1
            right += 0.5 * (1 + np.sign(predicted[second] - predicted[first]))
    found = accuracy_of(measured, predicted)
    assert found.num_pairs == num_pairs
    assert found.pair_ranking == (pytest.approx(right / num_pairs) if num_pairs else None)


@given(rows=_rows, data=st.data())
def test_five_picks_are_no_worse_than_one(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    predicted = np.array(data.draw(st.lists(_seconds, min_size=len(rows), max_size=len(rows))))
    found = accuracy_of(_measured(rows), predicted)
    assert found.top_regret is not None
    assert found.top5_regret is not None
    assert 0 <= found.top5_regret <= found.top_regret
    if len(rows) <= 5:
        assert found.top5_regret == 0


@given(rows=_rows, noise=_shares)
def test_more_noise_means_fewer_clear_pairs(rows: list[tuple[float, float]], noise: float) -> None:
    measurements = [_measurement(seconds, seconds * (1 - share), seconds * (1 + share)) for seconds, share in rows]
    narrow, wide = measured_of(measurements), measured_of(measurements, noise=noise)
    pairs = set(zip(*(column.tolist() for column in clear_pairs(narrow)), strict=True))
    assert pairs >= set(zip(*(column.tolist() for column in clear_pairs(wide)), strict=True))
    assert all(wide.low <= wide.seconds / (1 + noise))
    assert all(wide.high >= wide.seconds * (1 + noise))


@given(row=_rows.map(lambda rows: rows[0]), noise=_shares, num_trials=st.integers(2, 5))
def test_more_trials_of_a_strategy_are_surer(row: tuple[float, float], noise: float, num_trials: int) -> None:
    seconds, share = row
    trial = _measurement(seconds, seconds * (1 - share), seconds * (1 + share))
    (one,), (several,) = (measured_of_trials([[trial] * count], noise=noise).high for count in (1, num_trials))
    assert several / seconds == pytest.approx((one / seconds) ** (1 / num_trials**0.5))


def test_trials_of_a_strategy_count_as_their_mean() -> None:
    trials = [_measurement(seconds, seconds, seconds) for seconds in (1.0, 4.0)]
    assert measured_of_trials([trials, trials[:1]]).seconds == pytest.approx([2.0, 1.0])


def test_a_strategy_is_no_pair_with_itself() -> None:
    measured = _measured([(1.0, 0.0)])
    assert accuracy_of(measured, np.array([2.0])).num_pairs == 0
    assert accuracy_of(measured, np.array([2.0])).median_error == 1.0


def test_nothing_has_no_accuracy() -> None:
    found = accuracy_of(measured_of([]), np.empty(0))
    assert found.num_strategies == 0
    assert found.median_error is None
    assert found.top_regret is None


def test_noise_is_what_repeated_trials_differ_by() -> None:
    rng = np.random.default_rng(1)
    logs = rng.normal(0.0, 0.02, size=(60, 4))
    records = [_record(math.exp(log), strategy=f"s{row}") for row, logs_of in enumerate(logs) for log in logs_of]
    # 95 % of trials lie within 1.96 standard deviations.
    assert noise_of(records) == pytest.approx(1.96 * 0.02, rel=0.25)
    assert noise_of([_record(1.0, strategy="a"), _record(2.0, strategy="b")]) == 0


def test_disturbed_records_tell_nothing_of_the_noise() -> None:
    quiet = [_record(1.0), _record(1.0), _record(1.0)]
    assert noise_of([*quiet, *(_record(3.0, flags=("busy_cpu",)) for _ in range(9))]) == 0


def test_the_mean_of_accuracies_leaves_out_what_is_not_known() -> None:
    measured = _measured([(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)])
    good, bad = accuracy_of(measured, measured.seconds), accuracy_of(measured, 1 / measured.seconds)
    found = mean_accuracy([good, bad, replace(bad, pair_ranking=None)])
    assert found.pair_ranking == 0.5
    assert found.num_strategies == 9
    assert mean_accuracy([]).kendall_tau is None
