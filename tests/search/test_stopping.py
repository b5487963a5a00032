"""A search ends early if nothing is left to gain, and gives the reason."""

from collections.abc import Callable
from dataclasses import replace

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP
from autosync.search.stopping import why_stop

MakeRecord = Callable[..., Record]


def _records(make_record: MakeRecord, *seconds: float | None) -> list[Record]:
    return [make_record(number, STOCK_DDP, one) for number, one in enumerate(seconds)]


def test_near_the_bound_there_is_nothing_to_gain(make_record: MakeRecord) -> None:
    records = _records(make_record, 0.2, None, 0.101)
    assert why_stop(records, bound_seconds=0.05, patience=9) is None
    reason = why_stop(records, bound_seconds=0.1, patience=9)
    assert reason == "no strategy can be much faster: the best is 1.0 % above what the links allow"


def test_a_bound_that_a_step_refutes_ends_nothing(make_record: MakeRecord) -> None:
    assert why_stop(_records(make_record, 0.2, 0.098), bound_seconds=0.1, patience=9) is not None
    assert why_stop(_records(make_record, 0.2, 0.09), bound_seconds=0.1, patience=9) is None


def test_without_a_bound_there_may_always_be_something_to_gain(make_record: MakeRecord) -> None:
    assert why_stop(_records(make_record, 0.2, 0.0001), bound_seconds=None, patience=9) is None


def test_patience_counts_trials_since_the_last_gain(make_record: MakeRecord) -> None:
    seconds: list[float | None] = [1.0, 0.9, None, 0.899, 0.95]
    assert why_stop(_records(make_record, *seconds), bound_seconds=0.1, patience=4) is None
    assert why_stop(_records(make_record, *seconds, 0.99), bound_seconds=0.1, patience=4) == (
        "no further gain is likely: 4 trials have brought none since the last that did"
    )
    assert why_stop(_records(make_record, *seconds, 0.5), bound_seconds=0.1, patience=4) is None
    assert why_stop(_records(make_record, *seconds, 0.99), bound_seconds=0.1, patience=0) is None


def test_trials_on_a_busy_machine_say_nothing_of_gains(make_record: MakeRecord) -> None:
    records = _records(make_record, 1.0, 1.1, 1.2, 1.3, 1.4)
    assert why_stop(records, bound_seconds=0.1, patience=3) is not None
    busy = [replace(one, measurement=replace(one.measurement, flags=("busy_machine",))) for one in records]
    assert why_stop([*records[:1], *busy[1:]], bound_seconds=0.1, patience=3) is None


def test_failures_alone_are_no_reason(make_record: MakeRecord) -> None:
    assert why_stop(_records(make_record, None, None, None), bound_seconds=0.1, patience=2) is None
