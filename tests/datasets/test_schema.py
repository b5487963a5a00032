"""What a record may hold, what it may not, and that it reads back as it was."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.datasets.schema import (
    FAILURE_KINDS,
    Failure,
    Measurement,
    PlanFacts,
    Record,
    record_from_plain,
    record_to_plain,
    seconds_of_steps,
)
from autosync.errors import DocumentError

MakeRecord = Callable[..., Record]

PLAN = PlanFacts(
    num_messages=2,
    num_transfers=4,
    num_locals=2,
    num_lanes=1,
    num_sends=24.0,
    num_native_sends=12.0,
    sent_bytes=1e6,
    wire_seconds=0.01,
)

PLAIN = {
    "schema": "autosync.record/1",
    "study": "nightly",
    "trial": 0,
    "origin": "preset:ddp",
    "model_name": "resnet50",
    "model_fingerprint": "0123456789abcdef",
    "cluster_name": "4-hosts",
    "cluster_fingerprint": "fedcba9876543210",
    "strategy": {"schema": "autosync.strategy/1", "messages": [{"parts": ["w", "b"], "priority": 1}]},
    "strategy_id": "s-1",
    "plan_id": "p-1",
    "classes": ["exact"],
    "measurement": {
        "step_seconds": [[0.11, 0.12, 0.3], [0.1, 0.13, 0.2]],
        "median_seconds": 0.13,
        "low_seconds": 0.11,
        "high_seconds": 0.3,
        "num_warmup_steps": 3,
        "peak_memory_bytes": [2147483648, 2147483649],
    },
    "environment": {"python": "3.11.9", "torch": "2.13.0", "backend": "gloo"},
    "compute": "real",
    "network": "emulated",
    "started": "2026-01-31T12:00:00+00:00",
}


@given(st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_steps_add_up_to_the_time_that_has_passed(num_ranks: int, num_steps: int, seed: int) -> None:
    lots = random.Random(seed)
    ranks = [[lots.uniform(0.1, 0.2) for _ in range(num_steps)] for _ in range(num_ranks)]
    steps = seconds_of_steps(ranks)
    assert sum(steps) == pytest.approx(sum(map(sum, ranks)) / num_ranks)
    for seconds, of_ranks in zip(steps, zip(*ranks, strict=True), strict=True):
        assert min(of_ranks) * (1 - 1e-12) <= seconds <= max(of_ranks) * (1 + 1e-12)


def test_the_plain_form_of_a_measured_trial(make_record: MakeRecord) -> None:
    record = make_record()
    assert record_to_plain(record) == PLAIN
    assert record_from_plain(PLAIN) == record


def test_the_plain_form_of_a_failed_trial(make_failed: MakeRecord) -> None:
    record = make_failed(strategy=None, strategy_id=None, plan_id=None, origin="baseline:torch_ddp")
    plain = record_to_plain(record)
    assert plain["failure"] == {"kind": "timeout", "message": "no answer"}
    assert not {"measurement", "strategy", "strategy_id", "plan_id"} & plain.keys()
    assert record_from_plain(plain) == record


def test_a_measurement_counts_its_ranks_and_steps(make_record: MakeRecord) -> None:
    measurement = make_record().measurement
    assert measurement is not None
    assert (measurement.num_ranks, measurement.num_steps) == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_seconds": ()}, "no step was measured"),
        ({"step_seconds": ((), ())}, "no step was measured"),
        ({"step_seconds": ((0.1, 0.2), (0.1,))}, "the ranks have 2, 1 measured steps"),
        ({"step_seconds": ((0.1,), (0.0,))}, "0.0 is no step time"),
        ({"step_seconds": ((0.1,), (float("nan"),))}, "nan is no step time"),
        ({"high_seconds": float("inf")}, "inf is no step time"),
        ({"low_seconds": -0.1}, "-0.1 is no step time"),
        ({"low_seconds": 0.14}, "the median 0.13 is not within 0.14 to 0.3"),
        ({"high_seconds": 0.12}, "the median 0.13 is not within 0.11 to 0.12"),
        ({"num_warmup_steps": -1}, "-1 warm-up steps cannot be"),
        ({"peak_memory_bytes": (1,)}, r"peak memory \[1\] of 2 ranks"),
        ({"peak_memory_bytes": (1, -1)}, r"peak memory \[1, -1\] of 2 ranks"),
        ({"peak_memory_bytes": (1, 2**63)}, "of 2 ranks"),
        ({"bytes_sent": (1,)}, r"bytes_sent \[1\] of 2 ranks"),
        ({"bytes_received": (1, -1)}, r"bytes_received \[1, -1\] of 2 ranks"),
        ({"cpu_share": 1.1}, "a CPU share of 1.1"),
        ({"cpu_share": float("nan")}, "a CPU share of nan"),
        ({"other_cpu_share": -0.1}, "a CPU share of -0.1"),
        ({"exposed_seconds": -0.1}, "-0.1 exposed seconds"),
        ({"exposed_seconds": float("inf")}, "inf exposed seconds"),
        ({"flags": ("drift", "drift")}, "the flags"),
    ],
)
def test_a_measurement_that_cannot_be(changes: dict[str, Any], message: str, make_record: MakeRecord) -> None:
    measurement = make_record().measurement
    assert isinstance(measurement, Measurement)
    with pytest.raises(ValueError, match=message):
        replace(measurement, **changes)


def test_circumstances_are_kept_and_records_without_them_are_read(make_record: MakeRecord) -> None:
    record = make_record()
    assert record.measurement is not None
    known = {
        "cpu_share": 0.4,
        "bytes_sent": (10, 11),
        "bytes_received": (12, 13),
        "exposed_seconds": 0.02,
        "other_cpu_share": 0.01,
        "flags": ("drift", "noisy"),
    }
    fuller = replace(record, measurement=replace(record.measurement, **known))
    plain = record_to_plain(fuller)
    assert plain["measurement"].keys() - record_to_plain(record)["measurement"].keys() == known.keys()
    assert record_from_plain(plain) == fuller


@pytest.mark.parametrize("name", PLAN.__dataclass_fields__)
def test_a_plan_comes_to_no_less_than_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1"):
        replace(PLAN, **{name: -1})


def test_the_ends_of_the_interval_may_be_the_median(make_record: MakeRecord) -> None:
    measurement = make_record().measurement
    assert measurement is not None
    assert replace(measurement, low_seconds=0.13, high_seconds=0.13).low_seconds == 0.13


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failure": Failure(kind="raised", message="")}, "both of measurement and failure"),
        ({"measurement": None}, "neither of measurement and failure"),
        ({"trial": -1}, "-1 is no number of a trial"),
        ({"trial": 2**63}, "is no number of a trial"),
        ({"classes": ()}, r"the classes \[\]"),
        ({"classes": ("lossy", "lossy")}, "the classes"),
        ({"study": ""}, "study is empty"),
        ({"origin": ""}, "origin is empty"),
        ({"plan_id": ""}, "plan_id is empty"),
        ({"model_name": "\udc80"}, "cannot be written"),
        ({"environment": {"cpu": "\udc80"}}, "cannot be written"),
        ({"strategy_id": None}, "strategy and strategy_id go together"),
        ({"strategy": None}, "strategy and strategy_id go together"),
        ({"strategy": None, "strategy_id": None}, "a plan or plan_id without a strategy"),
        (
            {"strategy": None, "strategy_id": None, "plan_id": None, "plan": PLAN},
            "a plan or plan_id without a strategy",
        ),
        ({"dilation": 0.0}, "a dilation of 0.0"),
        ({"dilation": float("nan")}, "a dilation of nan"),
        ({"model_spec": ""}, "model_spec is empty"),
        ({"strategy": {"ratio": float("nan")}}, "plain values"),
        ({"strategy": {"sizes": (1, 2)}}, "plain values"),
        ({"strategy": {1: "a"}}, "plain values"),
        ({"strategy": {"name": "\udc80"}}, "plain values"),
        ({"strategy": {"name": object()}}, "plain values"),
        ({"started": "2026-01-31"}, "an ISO timestamp in UTC"),
        ({"started": "2026-01-31T12:00:00"}, "an ISO timestamp in UTC"),
        ({"started": "2026-01-31T12:00:00+01:00"}, "an ISO timestamp in UTC"),
        ({"started": "yesterday"}, "an ISO timestamp in UTC"),
    ],
)
def test_a_record_that_cannot_be(changes: dict[str, Any], message: str, make_record: MakeRecord) -> None:
    with pytest.raises(ValueError, match=message):
        make_record(**changes)


def test_a_refused_strategy_may_have_no_plan(make_failed: MakeRecord) -> None:
    assert make_failed(plan_id=None).strategy_id == "s-1"


def test_last_words_that_are_no_text_are_kept_as_escapes() -> None:
    assert Failure(kind="raised", message="caf\udce9 é\n").message == "caf\\udce9 é\n"


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_every_kind_of_failure_reads_back(kind: Any, make_record: MakeRecord) -> None:
    record = make_record(measurement=None, failure=Failure(kind=kind, message="why"))
    assert record_from_plain(record_to_plain(record)) == record


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "autosync.record/2"}, "log:7: schema: version 2 of autosync.record is newer than this autosync"),
        ({"schema": "autosync.strategy/1"}, "log:7: schema: this is no record file"),
        ({"schema": None}, "log:7: the first field, schema, is missing"),
        ({"origine": "x"}, "log:7: origine: unknown key .*did you mean 'origin'"),
        ({"trial": "3"}, "log:7: trial: '3' is not allowed here"),
        ({"classes": ["exakt"]}, "log:7: classes.0.: unknown value 'exakt' .*did you mean 'exact'"),
        ({"compute": "dreamt"}, "log:7: compute: unknown value 'dreamt'"),
        ({"measurement": None}, "log:7: neither of measurement and failure"),
        ({"measurement": PLAIN["measurement"] | {"low_seconds": 1.0}}, "log:7: measurement: the median 0.13 is not"),
        ({"failure": {"kind": "bored", "message": ""}}, "log:7: failure.kind: unknown value 'bored'"),
        ({"environment": {"python": 3}}, "log:7: environment.python: 3 is not allowed here"),
        ({"strategy": {"ratio": float("nan")}}, "log:7: no plain value"),
    ],
)
def test_a_foreign_record_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        record_from_plain(PLAIN | changes, file="log", line=7)


@pytest.mark.parametrize("plain", [None, [], "record", 3])
def test_what_is_no_mapping_is_no_record(plain: Any) -> None:
    with pytest.raises(DocumentError, match="the file holds no fields"):
        record_from_plain(plain, file="log", line=7)
