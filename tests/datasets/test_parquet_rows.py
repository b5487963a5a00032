"""Parquet files from elsewhere are read within limits, however little of the disk they take."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autosync.datasets import parquet_rows
from autosync.datasets.export import export, import_records
from autosync.datasets.parquet_rows import MAX_GROUP_VALUES, ROWS_AT_ONCE, TooLargeError, rows_of
from autosync.datasets.schema import Record
from autosync.errors import DocumentError
from autosync.jsonio import MAX_LINE_BYTES

MakeRecord = Callable[..., Record]


def _file(**columns: Any) -> io.BytesIO:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd")
    file.seek(0)
    return file


def test_rows_come_as_they_were_written() -> None:
    columns = {
        "text": ["a", None, "", "b" * 100] * 20,
        "texts": [["a", "b"], [], None, ["a"]] * 20,
        "number": [1.5, None, 2.0, 3.0] * 20,
        "times": [[[0.1, 0.2], []], [], None, [[0.3]]] * 20,
    }
    expected = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert len(expected) > ROWS_AT_ONCE
    assert list(rows_of(_file(**columns))) == expected


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(["x" * (MAX_LINE_BYTES + 1)] * 3, id="a long text"),
        pytest.param([["x" * 100_000] * 100] * 100, id="many long texts"),
        pytest.param([[0.0] * (MAX_LINE_BYTES // 8 + 1)], id="many numbers"),
        pytest.param([[[0.0] * 1000] * 1000 + [[0.0] * 100_000]], id="many numbers of ranks"),
        pytest.param([[1] * 1000] * (MAX_GROUP_VALUES // 1000 + 1), id="many values in a group"),
    ],
)
def test_what_would_not_fit_into_memory_is_refused(column: list[Any]) -> None:
    with pytest.raises(TooLargeError):
        list(rows_of(_file(column=column)))


@pytest.mark.parametrize("kind", [pa.binary(8), pa.struct([("a", pa.string())]), pa.map_(pa.string(), pa.string())])
def test_other_columns_are_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="a column of"):
        list(rows_of(_file(column=pa.array([None] * 3, kind))))


_READ = """
import resource, sys
from autosync.datasets.export import import_records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
problems = []
list(import_records(sys.argv[1], report=problems.append))
print(problems[-1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_small_file_does_not_take_much_memory(make_record: MakeRecord, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    export([make_record(trial=number) for number in range(1000)], path)
    table = pq.read_table(path)
    place = table.schema.get_field_index("failure_message")
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["0" * 40_000_000]))
    pq.write_table(table.set_column(place, "failure_message", large), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1_000_000
    found = subprocess.run((sys.executable, "-c", _READ, path), capture_output=True, text=True, check=True)
    words, megabytes = found.stdout.splitlines()
    assert "a row of" in words
    assert int(megabytes) < 300


def test_groups_of_large_rows_are_small_enough_to_be_read(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autosync.datasets.formats._BYTES_PER_GROUP", 20_000)
    records = [replace(make_record(trial=number), environment={"note": "x" * (3000 + number)}) for number in range(30)]
    export(records, tmp_path / "a.parquet")
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups > 3
    assert list(import_records(tmp_path / "a.parquet")) == records
    monkeypatch.setattr(parquet_rows, "MAX_GROUP_BYTES", 1000)
    with pytest.raises(DocumentError, match=r"a.parquet:1: a group of rows with \d+ bytes"):
        list(import_records(tmp_path / "a.parquet"))
