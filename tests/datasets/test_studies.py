"""Studies read back from journals that Optuna wrote: every record, or the line that says why not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autosync.datasets.schema import Record, record_to_plain
from autosync.datasets.studies import find_studies, find_study, read_study
from autosync.errors import DocumentError, InputError, Problem, UnknownNameError

MakeRecord = Callable[..., Record]
MakeStudy = Callable[..., Path]


def _read(folder: Path) -> tuple[list[Record], list[Problem]]:
    problems: list[Problem] = []
    return list(read_study(folder, report=problems.append)), problems


def test_a_study_reads_back_in_the_order_of_its_trials(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord, make_failed: MakeRecord
) -> None:
    records = [make_record(), make_failed(trial=1), make_record(trial=2, origin="sampled")]
    assert list(read_study(make_study(tmp_path / "s", records))) == records


def test_all_studies_of_a_journal_are_read(tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord) -> None:
    first, second = [make_record(), make_record(trial=1)], [make_record(study="weekly")]
    make_study(tmp_path / "s", first)
    make_study(tmp_path / "s", second, name="weekly")
    assert list(read_study(tmp_path / "s")) == first + second


def test_a_study_without_trials_has_no_records(tmp_path: Path, make_study: MakeStudy) -> None:
    assert list(read_study(make_study(tmp_path / "s", []))) == []


def test_trials_that_are_not_finished_have_no_record_yet(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    """A trial that was stopped between its record and its end has been measured all the same."""
    folder = make_study(tmp_path / "s", [make_record()])
    study = optuna.load_study(
        study_name="nightly", storage=JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    )
    study.ask()
    study.enqueue_trial({"x": 0.5})
    assert _read(folder) == ([make_record()], [])
    study.ask().set_user_attr("record", record_to_plain(make_record(trial=2)))
    assert _read(folder) == ([make_record(), make_record(trial=2)], [])


def test_a_finished_trial_without_a_record_is_told(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    folder = make_study(tmp_path / "s", [make_record()])
    study = optuna.load_study(
        study_name="nightly", storage=JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    )
    study.tell(study.ask(), state=TrialState.FAIL)
    records, problems = _read(folder)
    assert records == [make_record()]
    num_lines = len((folder / "journal.log").read_bytes().splitlines())
    rule = "a finished trial has an attribute record: autosync.record/1"
    expected = f"{folder}/journal.log:{num_lines}: nightly.trials[1]: has no record ({rule})"
    assert [str(problem) for problem in problems] == [expected]


def test_a_foreign_record_is_told_with_file_line_and_trial(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    newer = record_to_plain(make_record(trial=1)) | {"schema": "autosync.record/2"}
    broken = record_to_plain(make_record(trial=2)) | {"compute": "dreamt", "network": "none"}
    folder = make_study(tmp_path / "s", [make_record(), newer, broken, "text", make_record(trial=4)])
    lines = (folder / "journal.log").read_text(encoding="utf-8").splitlines()
    at = [number for number, line in enumerate(lines, start=1) if '"user_attr":{"record"' in line]
    too_new = "version 2 of autosync.record is newer than this autosync, which reads versions up to 1"
    records, problems = _read(folder)
    assert records == [make_record(), make_record(trial=4)]
    assert [str(problem).partition("journal.log:")[2].partition(" (")[0] for problem in problems] == [
        f"{at[1]}: nightly.trials[1].record.schema: {too_new}",
        f"{at[2]}: nightly.trials[2].record.compute: unknown value 'dreamt'",
        f"{at[2]}: nightly.trials[2].record.network: unknown value 'none'",
        f"{at[3]}: nightly.trials[3].record: the file holds no fields",
    ]
    assert all(problem.file == str(folder / "journal.log") for problem in problems)


def test_without_a_report_mistakes_are_raised_behind_the_last_record(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    folder = make_study(tmp_path / "s", [{"schema": "x"}, make_record(trial=1), {}])
    reader = read_study(folder)
    assert next(reader) == make_record(trial=1)
    with pytest.raises(DocumentError) as caught:
        next(reader)
    assert [problem.path[2] for problem in caught.value.problems] == [0, 2]


def test_a_last_line_that_breaks_off_is_told(tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord) -> None:
    folder = make_study(tmp_path / "s", [make_record()])
    journal = folder / "journal.log"
    num_lines = len(journal.read_bytes().splitlines())
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"w","study')
    records, problems = _read(folder)
    assert records == [make_record()]
    assert [(problem.file, problem.line) for problem in problems] == [(str(journal), num_lines + 1)]
    assert "the last line breaks off" in problems[0].what
    with pytest.raises(DocumentError, match="the last line breaks off"):
        list(read_study(folder))


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"[1, 2]",
        b"3",
        b"{}",
        b'{"op_code": 99}',
        b'{"op_code": 4}',
        b'{"op_code": 8, "trial_id": [], "worker_id": "w", "user_attr": {"record": 1}}',
        b'{"op_code": 6, "trial_id": 0, "worker_id": "w", "state": 77, "values": null}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
@pytest.mark.parametrize("position", [1, 5])
def test_a_line_that_is_no_operation_is_refused_with_its_number(
    line: bytes, position: int, tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    folder = make_study(tmp_path / "s", [make_record(), make_record(trial=1)])
    journal = folder / "journal.log"
    lines = journal.read_bytes().splitlines()
    # Trial 0 is open at the fifth line, so that an operation on it counts.
    if b'"state": 77' in line and position == 1:
        position = 3
    journal.write_bytes(b"".join(each + b"\n" for each in [*lines[: position - 1], line, *lines[position - 1 :]]))
    expected = rf"journal.log:{position}: the line cannot be understood"
    with pytest.raises(DocumentError, match=expected):
        list(read_study(folder))


def test_a_line_that_two_operations_share_is_refused(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    """What becomes of a torn line when the next process appends behind it: Optuna's file backend says nothing."""
    folder = make_study(tmp_path / "s", [make_record()])
    with (folder / "journal.log").open("ab") as file:
        file.write(b'{"op_code":4,"worker\n')
    with pytest.raises(DocumentError, match="the line cannot be understood"):
        list(read_study(folder))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"is no study: study.json and journal.log missing \(a study folder holds study.json and journal.log\)"),
        (["study.json"], r"is no study: journal.log missing"),
        (["journal.log"], r"is no study: study.json missing"),
    ],
)
def test_a_folder_that_is_no_study_says_what_is_missing(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=message):
        read_study(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_what_is_no_folder_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        read_study(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is no folder"):
        read_study(tmp_path / "file")


def test_studies_are_found_by_name_and_path(
    tmp_path: Path, make_study: MakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_studies() == []
    for name in ("b", "a"):
        make_study(Path("autosync-studies") / name, [])
    (tmp_path / "autosync-studies" / "notes").mkdir()
    (tmp_path / "autosync-studies" / "README").touch()
    assert find_studies() == [Path("autosync-studies/a"), Path("autosync-studies/b")]
    assert find_study("b") == Path("autosync-studies/b")
    assert find_study("autosync-studies/b") == Path("autosync-studies/b")
    assert find_study("elsewhere/c") == Path("elsewhere/c")
    with pytest.raises(UnknownNameError, match=r"unknown study 'c' \(known: a, b\)"):
        find_study("c")


def test_reading_writes_nothing_and_says_nothing(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    folder = make_study(tmp_path / "s", [make_record()])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code = f"from autosync.datasets.studies import read_study\nprint(len(list(read_study({str(folder)!r}))))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ, timeout=60
    )
    assert (result.stdout, result.stderr) == ("1\n", "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_schema_and_the_exporters_load_nothing_heavy() -> None:
    code = (
        "import sys, json\n"
        "import autosync.datasets.schema, autosync.datasets.export, autosync.datasets.studies, autosync.cli.export\n"
        "print(json.dumps(sorted({'torch', 'optuna', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded: Any = json.loads(result.stdout)
    assert loaded == []


@pytest.mark.parametrize(
    "line",
    [
        {"op_code": 4, "study_id": 0, "user_attrs": 5},
        {
            "op_code": 4,
            "study_id": 0,
            "distributions": {"x": json.dumps({"name": "IntDistribution", "attributes": {"low": 0, "high": 1e400}})},
        },
    ],
    ids=["attributes", "infinite"],
)
def test_what_nobody_would_write_is_told_as_what_it_is(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord, line: dict[str, Any]
) -> None:
    folder = make_study(tmp_path / "s", [make_record()])
    with (folder / "journal.log").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"worker_id": "w", "datetime_start": None, **line}) + "\n")
    told: list[str] = []
    try:
        told += map(str, _read(folder)[1])
    except DocumentError as error:
        told.append(str(error))
    assert all(str(folder / "journal.log") in one for one in told)


def test_settings_nested_without_end_hide_no_other_study(
    tmp_path: Path, make_study: MakeStudy, make_record: MakeRecord
) -> None:
    make_study(tmp_path / "good", [make_record()])
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "study.json").write_text("[" * 200_000)
    assert find_studies(tmp_path) == [tmp_path / "good"]
