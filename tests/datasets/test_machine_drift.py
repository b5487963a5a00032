"""Records next to a reference that is off are flagged, those of other combinations are not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from autosync.datasets.machine_drift import flag_drift
from autosync.datasets.schema import Record

MakeRecord = Callable[..., Record]


def timed(make_record: MakeRecord, seconds: float, **changes: Any) -> Record:
    record = make_record(**changes)
    assert record.measurement is not None
    times = {"median_seconds": seconds, "low_seconds": seconds, "high_seconds": seconds}
    return replace(record, measurement=replace(record.measurement, **times))


def history(make_record: MakeRecord, seconds: Sequence[float | None]) -> list[Record]:
    """References that took so long; None for other trials."""
    return [
        timed(make_record, 1.0 if one is None else one, trial=number, origin="sampled" if one is None else "reference")
        for number, one in enumerate(seconds)
    ]


def flagged(records: Sequence[Record]) -> list[int]:
    return [
        number
        for number, record in enumerate(records)
        if record.measurement is not None and "drifting_machine" in record.measurement.flags
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([], []),
        ([None, None], []),
        ([0.1, None, 0.101, None, 0.1, None], []),
        # One reference is off: what lies on both sides of it.
        ([0.1, None, 0.1, None, None, 0.12, None, 0.1, None, 0.1], [3, 4, 5, 6]),
        # The visit was cut off before its last reference.
        ([0.1, None, 0.1, None, 0.1, None, 0.13, None], [5, 6, 7]),
        ([None, 0.08, None, 0.1, 0.1], [0, 1, 2]),
        # A strategy with two usual times, and once with a third.
        ([0.1, None, 0.11, None, 0.1, None, 0.11, None], []),
        ([0.1, None, 0.11, None, 0.1, None, 0.11, None, 0.13, None], [7, 8, 9]),
    ],
)
def test_what_is_next_to_a_reference_that_is_off(
    seconds: list[float | None], expected: list[int], make_record: MakeRecord
) -> None:
    assert flagged(flag_drift(history(make_record, seconds))) == expected


def test_combinations_and_campaigns_are_looked_at_apart(make_record: MakeRecord) -> None:
    off = history(make_record, [0.1, 0.1, 0.1, 0.2, None])
    others = [
        replace(one, cluster_fingerprint="another", trial=one.trial + 10)
        for one in history(make_record, [0.5, None, 0.5])
    ]
    studies = [replace(one, study="later", trial=one.trial + 20) for one in history(make_record, [0.2, None])]
    assert flagged(flag_drift([*off, *others, *studies])) == [3, 4]


def test_a_flag_of_an_earlier_look_goes_unless_it_is_kept_and_others_stay(make_record: MakeRecord) -> None:
    records = history(make_record, [0.1, None, 0.1])
    assert records[1].measurement is not None
    records[1] = replace(records[1], measurement=replace(records[1].measurement, flags=("noisy", "drifting_machine")))
    seen = flag_drift(records)[1].measurement
    assert seen is not None
    assert seen.flags == ("noisy",)
    assert flag_drift(records, keep=True) == records
    assert flagged(flag_drift(history(make_record, [0.1, 0.1, 0.1, 0.2, None]), keep=True)) == [3, 4]


def test_the_share_is_ones_own_to_choose(make_record: MakeRecord) -> None:
    records = history(make_record, [0.1, None, 0.1, 0.1, None, 0.102])
    assert flagged(flag_drift(records)) == []
    assert flagged(flag_drift(records, share=0.01)) == [4, 5]


def test_failed_references_tell_nothing(make_record: MakeRecord, make_failed: MakeRecord) -> None:
    records = history(make_record, [0.1, None, 0.1])
    assert flag_drift([*records, make_failed(trial=3, origin="reference")])[:3] == records
