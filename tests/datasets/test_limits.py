"""Files of records that hold something else are refused soon, however large they are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autosync import jsonio
from autosync.datasets.export import export, import_records
from autosync.datasets.journal import read_journal
from autosync.datasets.schema import Record
from autosync.datasets.storage_files import check_journal
from autosync.datasets.table import COLUMNS
from autosync.errors import DocumentError, InputError, Problem

MakeRecord = Callable[..., Record]

_HEADER = ",".join(COLUMNS)
_MANY = 600_000


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("a.jsonl", "1\n" * _MANY, 100, "stopped after 100 mistakes and 0 records"),
        ("a.jsonl", "{}\n" * _MANY, 100, "stopped after 100 mistakes"),
        ("a.jsonl", "\n" * _MANY, 10_001, "more than 10000 empty lines"),
        ("a.jsonl", "x" * (jsonio.MAX_LINE_BYTES + 1), 1, "a line of more than 8388608 bytes"),
        ("a.csv", "\n" * _MANY, 10_001, "more than 10000 empty lines"),
        ("a.csv", f"{_HEADER}\n" + "\n" * _MANY, 10_002, "more than 10000 empty lines"),
        ("a.csv", f"{_HEADER}\n" + "1\n" * _MANY, 101, "stopped after 100 mistakes"),
        ("a.csv", f"{_HEADER}\n" + "1," * _MANY, 2, "a row of more than 500,000 values"),
        ("a.csv", f'{_HEADER}\n"' + "\n" * _MANY, 2, "a row of more than 500,000 values"),
        ("a.csv", "x" * (jsonio.MAX_LINE_BYTES + 1), 1, "a row of more than 8388608 characters"),
        ("a.csv", "", 1, "the file is empty (the first line names the columns)"),
        ("a.csv", "\n\n", 1, "the file is empty"),
        ("a.csv", "a,b\n", 1, "a: unknown column (the columns of docs/records.md)"),
        ("a.csv", _HEADER.replace("study,", ""), 1, "study: the column is missing"),
    ],
)
def test_what_is_no_file_of_records_is_refused_soon(name: str, text: str, line: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    try:
        assert list(import_records(path, report=problems.append)) == []
    except DocumentError as error:
        problems += error.problems
    assert any(problem.line == line and what in str(problem) for problem in problems), problems[-1]
    assert len(problems) < 300


def test_a_line_of_many_keys_is_refused_before_it_is_built(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(dict.fromkeys(map(str, range(300_000)))) + "\n", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"a.jsonl:1: no JSON: more than 500,000 values and keys"):
        list(import_records(path))


def test_records_of_the_largest_strategies_are_read_back(make_record: MakeRecord, tmp_path: Path) -> None:
    # As large as a hundred variables, each cut into parts for a hundred servers.
    servers = [{"kind": "parameter_server", "server": f"n{number}", "mode": "sync"} for number in range(100)]
    messages = [{"parts": [f"v{one}#{two}"], "synchroniser": servers[two]} for one in range(100) for two in range(100)]
    record = make_record(trial=1)
    record = replace(record, strategy={**(record.strategy or {}), "messages": messages})
    export([record], tmp_path / "a.jsonl")
    assert list(import_records(tmp_path / "a.jsonl")) == [record]


def test_signs_within_quotes_are_no_values() -> None:
    text = json.dumps({"a": ",:[{" * 200_000 + '\\"'})
    assert jsonio.parse(text) == json.loads(text)


def test_a_file_that_has_more_records_than_mistakes_is_read_to_its_end(make_record: MakeRecord, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [make_record(trial=number) for number in range(150)]
    export(records, path)
    path.write_bytes(path.read_bytes() + b"1\n" * 120)
    problems: list[Problem] = []
    assert list(import_records(path, report=problems.append)) == records
    assert len(problems) == 120


def test_a_journal_of_many_studies_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    lines = [f'{{"op_code":0,"worker_id":"a","study_name":"s{number}","directions":[1]}}\n' for number in range(1_001)]
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    check_journal(path)
    assert read_journal(path).trials == ()
    path.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=r"journal.log:1001: the storage is too large \(at most 250,000 operations"):
        check_journal(path)
    with pytest.raises(InputError, match=r"journal.log:1001: the journal is too large"):
        read_journal(path)
