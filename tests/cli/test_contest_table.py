"""The table of a proof or a comparison fits 100 columns, and loses no figure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.cli.contest_table import ContestRow, format_contest, rows_of
from autosync.datasets.measured_input import MeasuredInput
from autosync.datasets.schema import Measurement
from autosync.specs.input_cost import InputCost
from autosync.strategy.wording import WIDTH
from autosync.testing.simulators import two_layers

NAMES = (
    "stock DDP",
    "stock DDP, bucket_cap_mb=25",
    "mutated 5c8dbf50",
    "preset:horovod_fusion 02777f2f",
    "preset:all_reduce_per_variable 02777f2f",
)
times = st.floats(0.01, 99_999, allow_nan=False)
FLAGS = ("busy_cpu", "drift", "not_steady", "noisy")


@st.composite
def rows(draw: st.DrawFn) -> ContestRow:
    ends = [
        sorted(draw(st.tuples(limits, limits, limits))) for limits in (times, st.floats(0.001, 99, allow_nan=False))
    ]
    (low, value, high), (least, speedup, most) = ends
    return ContestRow(
        name=draw(st.sampled_from(NAMES)),
        milliseconds=(value, low, high),
        speedup=draw(st.sampled_from([None, (speedup, least, most)])),
        exposed_seconds=draw(st.none() | st.floats(0, 99)),
        bytes_sent=draw(st.none() | st.floats(0, 1e11)),
        peak_memory_bytes=draw(st.none() | st.floats(1, 1e12)),
        cpu_share=draw(st.none() | st.floats(0, 1)),
        flags=draw(st.lists(st.sampled_from(FLAGS), unique=True)),
    )


@given(st.lists(rows(), min_size=1, max_size=6, unique_by=lambda row: row.name))
def test_no_line_is_longer_than_the_width(contestants: list[ContestRow]) -> None:
    text = format_contest(contestants)
    assert max(map(len, text.splitlines())) <= WIDTH
    words = " ".join(text.split())
    for row in contestants:
        assert row.name in text
        assert any(f"{row.milliseconds[0]:.{digits}f} (" in words for digits in (0, 1, 2))
        for flag in row.flags:
            told = words.partition(f" {flag}: ")[2]
            assert told.startswith("all") or row.name in told


def test_what_is_the_same_for_all_is_told_once() -> None:
    row = ContestRow(
        name="a", milliseconds=(1.0, 0.9, 1.1), speedup=None, exposed_seconds=None, bytes_sent=None,
        peak_memory_bytes=2e8, cpu_share=0.5, flags=("drift",),
    )  # fmt: skip
    other = ContestRow(
        name="b", milliseconds=(200.0, 90.0, 310.0), speedup=(0.5, 0.4, 0.6), exposed_seconds=None, bytes_sent=None,
        peak_memory_bytes=3e8, cpu_share=0.5, flags=("drift", "noisy"),
    )  # fmt: skip
    uncompared = replace(other, name="c", milliseconds=(300.0, 290.0, 310.0), speedup=None)
    assert format_contest([row, other, uncompared]).splitlines() == [
        "   ms a step (95 % range)  speed-up (95 % range)",
        "a  1.00 (0.90 to 1.10)     1",
        "b  200.0 (90.0 to 310.0)   0.500 (0.400 to 0.600)",
        "c  300.0 (290.0 to 310.0)",
        "memory of a rank: 200 MB (a) to 300 MB (c)",
        "processors in use: 50%",
        "drift: all",
        "noisy: b, c",
    ]


def test_waits_for_input_are_no_communication() -> None:
    measured = Measurement(
        step_seconds=((0.1,), (0.1,)), median_seconds=0.1, low_seconds=0.1, high_seconds=0.1, num_warmup_steps=4,
        peak_memory_bytes=(1, 1), exposed_seconds=0.06, input=MeasuredInput(wait_seconds=(0.01, 0.05)),
    )  # fmt: skip
    model = two_layers()
    read = replace(model, input=InputCost(worker_seconds=0.01, by_loader=True))
    [[row], [known]] = (rows_of({"a": measured}, {}, one) for one in (model, read))
    assert row.exposed_seconds == 0.06
    assert known.exposed_seconds == pytest.approx(0.01)
