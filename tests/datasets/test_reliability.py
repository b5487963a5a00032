"""Which records are doubtful, and which trial of a strategy stands for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from autosync.datasets.machine_drift import AGAIN_ORIGIN, REFERENCE_ORIGIN
from autosync.datasets.reliability import best_of_repeats, is_disturbed, is_worth_repeating, most_reliable
from autosync.datasets.schema import Flag, Record

MakeRecord = Callable[..., Record]

STEADY = (0.1, 0.101, 0.1)
SCATTERED = (0.1, 0.12, 0.1)


def with_steps(record: Record, seconds: Sequence[float], flags: tuple[Flag, ...] = ()) -> Record:
    assert record.measurement is not None
    low, median, high = sorted(seconds)
    measurement = replace(
        record.measurement,
        step_seconds=(tuple(seconds), tuple(seconds)),
        low_seconds=low,
        median_seconds=median,
        high_seconds=high,
        flags=flags,
    )
    return replace(record, measurement=measurement)


@pytest.mark.parametrize(
    ("seconds", "flags", "expected"),
    [(STEADY, (), False), (SCATTERED, (), True), (STEADY, ("noisy",), True), (SCATTERED, ("busy_cpu",), False)],
)
def test_flags_and_steps_that_differ_make_a_record_doubtful(
    seconds: Sequence[float], flags: tuple[Flag, ...], expected: bool, make_record: MakeRecord
) -> None:
    assert is_worth_repeating(with_steps(make_record(), seconds, flags)) is expected


def test_noise_alone_is_no_disturbance(make_record: MakeRecord, make_failed: MakeRecord) -> None:
    assert is_disturbed(with_steps(make_record(), STEADY, ("noisy", "drifting_machine")))
    assert not is_disturbed(with_steps(make_record(), SCATTERED, ("noisy",)))
    assert not is_disturbed(make_failed())


def test_a_failure_is_not_doubtful_but_the_last_to_stand_for_a_strategy(make_failed: MakeRecord) -> None:
    failed = make_failed()
    assert not is_worth_repeating(failed)
    assert most_reliable([failed]) is failed


def test_fewer_flags_come_before_steadier_steps(make_record: MakeRecord, make_failed: MakeRecord) -> None:
    flagged = with_steps(make_record(), STEADY, ("busy_cpu",))
    scattered, steady = with_steps(make_record(), SCATTERED), with_steps(make_record(), STEADY)
    everything = [make_failed(), flagged, scattered, steady]
    for expected in (steady, scattered, flagged):
        assert most_reliable(everything) is expected
        everything.remove(expected)


def test_each_strategy_is_there_once_and_what_is_repeated_on_purpose_always(make_record: MakeRecord) -> None:
    noisy, better = with_steps(make_record(trial=1), SCATTERED), with_steps(make_record(trial=4), STEADY)
    others = [
        make_record(trial=2, strategy_id="s-2"),
        make_record(trial=3, cluster_fingerprint="1111111111111111"),
        make_record(trial=5, origin="sampled"),
        *(make_record(trial=6 + number, origin=REFERENCE_ORIGIN) for number in range(2)),
        *(make_record(trial=8 + number, origin=AGAIN_ORIGIN) for number in range(2)),
    ]
    found = best_of_repeats([noisy, *others, better])
    assert sorted(record.trial for record in found) == [2, 3, 4, 5, 6, 7, 8, 9]
