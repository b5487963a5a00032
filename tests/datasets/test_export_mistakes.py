"""Files of records that break off, hold mistakes or something else are refused with their line."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from autosync.datasets.export import export, import_records
from autosync.datasets.formats import FORMATS
from autosync.datasets.schema import (
    Record,
)
from autosync.errors import DocumentError, Problem

MakeRecord = Callable[..., Record]


def _bytes_of(file_format: str, tmp_path: Path, make_record: MakeRecord) -> bytes:
    path = tmp_path / f"whole.{file_format}"
    export([make_record(), make_record(trial=1)], path)
    return path.read_bytes()


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_that_breaks_off_is_refused(file_format: str, tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / f"torn.{file_format}"
    path.write_bytes(_bytes_of(file_format, tmp_path, make_record)[:-60])
    with pytest.raises(DocumentError) as caught:
        list(import_records(path))
    assert caught.value.problems[0].file == str(path)
    assert caught.value.problems[0].line == {"parquet": 1, "csv": 3, "jsonl": 2}[file_format]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b"autosync.record/1,nightly,1",
            b"autosync.record/9,nightly,1",
            r"csv:3: schema: version 9 of autosync.record",
        ),
        (b"nightly,1,", b"nightly,one,", r"csv:3: trial: cannot be understood \(numbers"),
        (b"nightly,1,", b"nightly,1,,", r"csv:3: 44 cells \(a row has 43 cells\)"),
        (b"nightly,1,", b"nightly,,", r"csv:3: trial: is missing"),
        (b"0.13,0.11,0.3", b"0.13,0.2,0.3", r"csv:2: measurement: the median 0.13 is not within"),
        (b"origin,", b"origen,", r"csv:1: origin: the column is missing (?s:.*)csv:1: origen: unknown column"),
        (b"origin,", b"study,", "csv:1: two columns have the same name"),
        (b"schema,", b"scheme,", "csv:1: schema: the column is missing"),
        (b"preset:ddp", b"preset:\xff", r"csv:2: no UTF-8 text \(CSV in UTF-8\)"),
        (b"origin,", b"origin\xff,", r"csv:1: no UTF-8 text"),
        (b"preset:ddp", b'"preset"ddp', "csv:2: no CSV: .*; the rows from here on cannot be read"),
    ],
)
def test_mistakes_in_a_csv_have_their_line(
    old: bytes, new: bytes, message: str, tmp_path: Path, make_record: MakeRecord
) -> None:
    whole = _bytes_of("csv", tmp_path, make_record)
    assert old in whole
    path = tmp_path / "broken.csv"
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(DocumentError, match=message):
        list(import_records(path))


def test_bytes_that_are_no_text_cost_only_their_row(tmp_path: Path, make_record: MakeRecord) -> None:
    path, problems = tmp_path / "records.csv", list[Problem]()
    records = [make_record(trial=0, model_name="a\nb"), make_record(trial=1), make_record(trial=2)]
    export(records, path)
    path.write_bytes(path.read_bytes().replace(b"nightly,1,", b"n\xefghtly,1,"))
    assert list(import_records(path, report=problems.append)) == [records[0], records[2]]
    assert [(problem.line, problem.what) for problem in problems] == [(4, "no UTF-8 text")]


def test_mistakes_behind_a_row_of_many_lines_have_their_line(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "records.csv"
    export([make_record(model_name="a\nb\nc"), make_record(compute="replayed")], path)
    path.write_bytes(path.read_bytes().replace(b"replayed", b"repaid"))
    with pytest.raises(DocumentError, match=r"csv:5: compute: unknown value 'repaid'"):
        list(import_records(path))


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_file_of_something_else_is_refused(file_format: str, tmp_path: Path) -> None:
    path = tmp_path / f"other.{file_format}"
    path.write_text("name\nresnet50\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=rf"other.{file_format}:[12]: "):
        list(import_records(path))


def test_parquet_of_another_table_is_refused(tmp_path: Path, make_record: MakeRecord) -> None:
    path = tmp_path / "records.parquet"
    pd.DataFrame({"a": [1, 2]}).to_parquet(path)
    with pytest.raises(DocumentError, match=r"parquet:1: schema: the column is missing"):
        list(import_records(path))
    export([make_record(), make_record(trial=1)], path, force=True)
    frame = pd.read_parquet(path)
    frame.loc[1, "strategy"] = "{"
    frame.to_parquet(path)
    with pytest.raises(DocumentError, match=r"parquet:2: strategy: "):
        list(import_records(path))
    frame.loc[1, "strategy"] = frame.loc[0, "strategy"]
    frame.loc[1, "trial"] = -1
    frame.to_parquet(path)
    with pytest.raises(DocumentError, match=r"parquet:2: -1 is no number of a trial"):
        list(import_records(path))


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(import_records(tmp_path / "none.csv"))
