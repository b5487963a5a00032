"""Files that other tools open: nothing is lost on the way out and back, whatever a record holds."""

import csv
import datetime as dt
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.datasets.export import export, format_of, import_records
from autosync.datasets.formats import FORMATS
from autosync.datasets.measured_input import MeasuredInput
from autosync.datasets.schema import (
    FAILURE_KINDS,
    FLAGS,
    Failure,
    Measurement,
    PlanFacts,
    Record,
    record_from_plain,
    record_to_plain,
    signed,
)
from autosync.datasets.table import COLUMNS
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError

MakeRecord = Callable[..., Record]

NASTY = 'a, "b"; c\nd\r\ne\tf\r'

_names = st.text(min_size=1)
_seconds = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
_counts = st.integers(0, 2**63 - 1)
_plans = st.builds(
    PlanFacts,
    num_messages=_counts,
    num_transfers=_counts,
    num_locals=_counts,
    num_lanes=_counts,
    num_sends=st.floats(0, 1e15),
    num_native_sends=st.floats(0, 1e15),
    sent_bytes=st.floats(0, 1e15),
    wire_seconds=st.floats(0, 1e15),
)
_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def _measurements(draw: st.DrawFn) -> Measurement:
    num_ranks, num_steps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    steps = st.lists(_seconds, min_size=num_steps, max_size=num_steps).map(tuple)
    low, median, high = sorted(draw(st.tuples(_seconds, _seconds, _seconds)))
    return Measurement(
        step_seconds=tuple(draw(steps) for _ in range(num_ranks)),
        median_seconds=median,
        low_seconds=low,
        high_seconds=high,
        num_warmup_steps=draw(_counts),
        peak_memory_bytes=tuple(draw(_counts) for _ in range(num_ranks)),
        cpu_share=draw(st.none() | st.floats(0, 1)),
        bytes_sent=draw(st.none() | st.just((7,) * num_ranks)),
        bytes_received=draw(st.none() | st.just((2**40,) * num_ranks)),
        exposed_seconds=draw(st.none() | st.floats(0, 1e6)),
        other_cpu_share=draw(st.none() | st.floats(0, 1)),
        input=draw(st.none() | st.just(MeasuredInput(wait_seconds=(0.5,) * num_ranks, request_rates={"a": 2.5}))),
        flags=tuple(draw(st.lists(st.sampled_from(FLAGS), unique=True))),
    )


@st.composite
def _records(draw: st.DrawFn) -> Record:
    has_strategy, is_measured = draw(st.booleans()), draw(st.booleans())
    failures = st.builds(Failure, kind=st.sampled_from(FAILURE_KINDS), message=st.text())
    classes = st.lists(st.sampled_from(("exact", "lossy", "stale")), min_size=1, unique=True)
    return Record(
        study=draw(_names),
        trial=draw(_counts),
        origin=draw(_names),
        model_name=draw(_names),
        model_fingerprint=draw(_names),
        cluster_name=draw(_names),
        cluster_fingerprint=draw(_names),
        strategy=draw(st.dictionaries(st.text(), _plain, max_size=3)) if has_strategy else None,
        strategy_id=draw(_names) if has_strategy else None,
        plan_id=draw(st.none() | _names) if has_strategy else None,
        plan=draw(st.none() | _plans) if has_strategy else None,
        model_spec=draw(st.none() | _names),
        cluster_spec=draw(st.none() | _names),
        classes=tuple(draw(classes)),
        measurement=draw(_measurements()) if is_measured else None,
        failure=None if is_measured else draw(failures),
        environment=draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        compute=draw(st.sampled_from(("real", "replayed"))),
        network=draw(st.sampled_from(("real", "emulated"))),
        dilation=draw(st.just(1.0) | st.floats(0.01, 100)),
        started=draw(st.datetimes(timezones=st.just(dt.UTC))).isoformat(),
    )


@given(record=_records())
def test_a_record_reads_back_from_its_plain_form(record: Record) -> None:
    text = json.dumps(record_to_plain(record))
    assert record_from_plain(json.loads(text)) == record


@pytest.mark.parametrize("file_format", FORMATS)
def test_whole_numbers_of_seconds_are_what_they_are(file_format: Any, tmp_path: Path, make_record: MakeRecord) -> None:
    measured = make_record().measurement
    assert measured is not None
    records = [make_record(dilation=2, measurement=replace(measured, high_seconds=1, cpu_share=0, exposed_seconds=0))]
    path = tmp_path / f"records.{file_format}"
    export(records, path)
    assert list(import_records(path)) == records


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_was_changed_is_not_believed(file_format: str, tmp_path: Path, make_record: MakeRecord) -> None:
    path, problems = tmp_path / f"records.{file_format}", list[Problem]()
    export([make_record(), make_record(trial=1), make_record(trial=2)], path)
    if file_format == "parquet":
        frame = pd.read_parquet(path)
        frame.loc[1, "median_seconds"] = 0.12
        frame.to_parquet(path)
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        number = 2 if file_format == "csv" else 1
        lines[number] = lines[number].replace(b"0.13,0.11", b"0.12,0.11").replace(b'ds":0.13', b'ds":0.12')
        path.write_bytes(b"".join(lines))
    assert [record.trial for record in import_records(path, report=problems.append)] == [0, 2]
    assert [(problem.line, problem.path) for problem in problems] == [(3 if file_format == "csv" else 2, ("checksum",))]
    with pytest.raises(DocumentError, match="the record is damaged or was changed"):
        list(import_records(path))


@pytest.mark.parametrize("file_format", FORMATS)
@settings(max_examples=25)
@given(records=st.lists(_records(), max_size=4))
def test_files_read_back_exactly(
    file_format: Any, records: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("out") / f"records.{file_format}"
    assert export(records, path) == len(records)
    found = list(import_records(path))
    assert found == records
    # Equal is not enough: True == 1 == 1.0, and mappings are equal in any order.
    assert repr(found) == repr(records)


@pytest.mark.parametrize("file_format", FORMATS)
def test_long_files_and_long_cells_read_back(file_format: Any, tmp_path: Path, make_record: MakeRecord) -> None:
    strategy = {"schema": "autosync.strategy/1", "messages": [{"parts": [f"layer.{i}.weight" for i in range(20000)]}]}
    records = [make_record(trial=i) for i in range(2500)] + [make_record(strategy=strategy)]
    path = tmp_path / f"records.{file_format}"
    limit = csv.field_size_limit()
    assert export(iter(records), path) == 2501
    assert list(import_records(path)) == records
    assert csv.field_size_limit() == limit


def test_pandas_opens_the_parquet(tmp_path: Path, make_record: MakeRecord, make_failed: MakeRecord) -> None:
    path = tmp_path / "records.parquet"
    export([make_record(model_name=NASTY), make_failed(NASTY, trial=1)], path)
    frame = pd.read_parquet(path)
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["model_name"]) == [NASTY, "resnet50"]
    assert list(frame["trial"]) == [0, 1]
    assert frame["median_seconds"][0] == 0.13
    assert pd.isna(frame["median_seconds"][1])
    assert frame["failure_message"][1] == NASTY
    assert [list(steps) for steps in frame["step_seconds"][0]] == [[0.11, 0.12, 0.3], [0.1, 0.13, 0.2]]
    assert json.loads(frame["strategy"][0])["schema"] == "autosync.strategy/1"


def test_the_parquet_is_compressed(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "records.parquet"
    export([make_record()], path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}


def test_pandas_opens_the_csv(tmp_path: Path, make_record: MakeRecord, make_failed: MakeRecord) -> None:
    path = tmp_path / "records.csv"
    export([make_record(model_name=NASTY), make_failed(NASTY, trial=1)], path)
    frame = pd.read_csv(path)
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["model_name"]) == [NASTY, "resnet50"]
    assert frame["median_seconds"][0] == 0.13
    assert pd.isna(frame["median_seconds"][1])
    assert frame["failure_message"][1] == NASTY
    assert json.loads(frame["peak_memory_bytes"][0]) == [2**31, 2**31 + 1]


def test_pandas_opens_the_json_lines(tmp_path: Path, make_record: MakeRecord, make_failed: MakeRecord) -> None:
    path = tmp_path / "records.jsonl"
    export([make_record(model_name=NASTY), make_failed(trial=1)], path)
    frame = pd.read_json(path, lines=True)
    assert list(frame["model_name"]) == [NASTY, "resnet50"]


def test_the_first_lines_of_a_csv(tmp_path: Path, make_failed: MakeRecord) -> None:
    path = tmp_path / "records.csv"
    record = make_failed(strategy=None, strategy_id=None, plan_id=None, environment={"cpu": "x"})
    export([record], path)
    checksum = signed(record)["checksum"]
    header = (
        "schema,study,trial,origin,model_name,cluster_name,classes,median_seconds,low_seconds,high_seconds,"
        "num_warmup_steps,exposed_seconds,cpu_share,other_cpu_share,flags,failure_kind,failure_message,compute,network,"
        "dilation,started,model_fingerprint,cluster_fingerprint,model_spec,cluster_spec,strategy_id,plan_id,"
        "bytes_sent,bytes_received,peak_memory_bytes,step_seconds,plan_num_messages,plan_num_transfers,plan_num_locals,"
        "plan_num_lanes,plan_num_sends,plan_num_native_sends,plan_sent_bytes,plan_wire_seconds,input,environment,strategy,"
        "checksum"
    )
    row = (
        'autosync.record/1,nightly,0,preset:ddp,resnet50,4-hosts,"[""exact""]",,,,,,,,,timeout,no answer,real,emulated,'
        ',2026-01-31T12:00:00+00:00,0123456789abcdef,fedcba9876543210,,,,,,,,,,,,,,,,,,"{""cpu"":""x""}",,'
        f"{checksum}"
    )
    assert path.read_bytes().decode().split("\r\n") == [header, row, ""]


def test_rows_of_a_csv_may_be_saved_by_a_spreadsheet(tmp_path: Path, make_record: MakeRecord) -> None:
    """A mark before the text, columns in another order, all cells in quotes, an empty line at the end."""
    path, saved = tmp_path / "records.csv", tmp_path / "saved.csv"
    record = make_record(model_name=NASTY)
    export([record], path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [list(reversed(row)) for row in csv.reader(file)]
    with saved.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        file.write("\n")
    assert list(import_records(saved)) == [record]


@pytest.mark.parametrize("file_format", FORMATS)
def test_no_file_is_replaced_unasked(file_format: Any, tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / f"records.{file_format}"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"exists \(no file is replaced unasked\)"):
        export([make_record()], path)
    assert path.read_text(encoding="utf-8") == "mine"
    assert export([make_record()], path, force=True) == 1
    assert list(import_records(path)) == [make_record()]
    with pytest.raises(InputError, match="is a folder"):
        export([make_record()], tmp_path, file_format, force=True)


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_error_half_way_changes_nothing(file_format: Any, tmp_path: Path, make_record: MakeRecord) -> None:
    def breaking() -> Iterator[Record]:
        yield make_record()
        raise RuntimeError("half way")

    path = tmp_path / f"records.{file_format}"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(RuntimeError, match="half way"):
        export(breaking(), path, force=True)
    assert path.read_text(encoding="utf-8") == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_pipe_is_written_to(file_format: Any, tmp_path: Path, make_record: MakeRecord) -> None:
    pipe, copy = tmp_path / f"pipe.{file_format}", tmp_path / f"copy.{file_format}"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()))
    reader.start()
    export([make_record()], pipe)
    reader.join(timeout=30)
    assert pipe.is_fifo()
    assert list(import_records(copy)) == [make_record()]


def test_a_link_stays_and_folders_are_made(tmp_path: Path, make_record: MakeRecord) -> None:
    link, target = tmp_path / "latest.csv", tmp_path / "made" / "records.csv"
    link.symlink_to(target)
    export([make_record()], link)
    assert link.is_symlink()
    assert list(import_records(target)) == [make_record()]


def test_the_format_is_asked_for_or_that_of_the_name() -> None:
    assert format_of("a.CSV") == "csv"
    assert format_of("a.txt", "jsonl") == "jsonl"
    assert format_of("a.parquet", "parquet") == "parquet"
    with pytest.raises(
        InputError, match=r"a.txt: the name tells no format \(the name ends with .parquet, .csv, .jsonl"
    ):
        format_of("a.txt")
    with pytest.raises(InputError, match=r"a.csv is no name for parquet"):
        format_of("a.csv", "parquet")
    unknown: Any = "parket"
    with pytest.raises(UnknownNameError, match=r"unknown format 'parket' .*did you mean 'parquet'"):
        format_of("a.csv", unknown)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''=1", "'quoted", "plain"])
def test_no_text_is_a_formula_in_csv(text: str, make_record: Callable[..., Record], tmp_path: Path) -> None:
    record = replace(make_record(), study=text, model_name=text)
    export([record], tmp_path / "r.csv")
    assert list(import_records(tmp_path / "r.csv")) == [record]
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [
        cell for cell in cells if cell[:1] in set("=+-@\t\r") and not cell.lstrip("-").replace(".", "").isdigit()
    ]
