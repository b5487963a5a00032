"""`autosync export`: studies become one file, and nothing is left out silently."""

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autosync.cli import main
from autosync.datasets.export import import_records
from autosync.datasets.schema import Failure, Measurement, Record, record_to_plain


def _record(study: str, trial: int, *, failed: bool = False) -> Record:
    measurement = Measurement(
        step_seconds=((0.1, 0.2),),
        median_seconds=0.15,
        low_seconds=0.1,
        high_seconds=0.2,
        num_warmup_steps=3,
        peak_memory_bytes=(1000,),
    )
    return Record(
        study=study,
        trial=trial,
        origin="baseline:torch_ddp",
        model_name="m",
        model_fingerprint="1",
        cluster_name="c",
        cluster_fingerprint="2",
        classes=("exact",),
        measurement=None if failed else measurement,
        failure=Failure(kind="timeout", message="after 60 s") if failed else None,
        environment={},
        compute="real",
        network="real",
        started="2026-01-31T12:00:00+00:00",
    )


def _make_study(name: str, records: list[Any]) -> None:
    folder = Path("autosync-studies") / name
    folder.mkdir(parents=True)
    (folder / "study.json").write_text("{}", encoding="utf-8")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name=name, storage=JournalStorage(JournalFileBackend(f"{folder}/journal.log")))
    for record in records:
        trial = study.ask()
        trial.set_user_attr("record", record_to_plain(record) if isinstance(record, Record) else record)
        study.tell(trial, state=TrialState.FAIL)


@pytest.fixture(autouse=True)
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two studies in the current folder, one of them with a failed trial."""
    monkeypatch.chdir(tmp_path)
    _make_study("first", [_record("first", 0), _record("first", 1, failed=True)])
    _make_study("second", [_record("second", 0)])


@pytest.mark.parametrize("file_format", ["parquet", "csv", "jsonl"])
def test_all_studies_go_into_one_file(file_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "--format", file_format, "-o", f"out/all.{file_format}"]) == 0
    records = [_record("first", 0), _record("first", 1, failed=True), _record("second", 0)]
    assert list(import_records(f"out/all.{file_format}")) == records
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"wrote out/all.{file_format}: 3 records of 2 studies, 1 of them a failure\n"


def test_studies_are_named_or_given_as_folders(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "second", "autosync-studies/second", "-o", "one.csv"]) == 0
    assert list(import_records("one.csv")) == [_record("second", 0)]
    assert capsys.readouterr().err == "wrote one.csv: 1 record of 1 study, 0 of them a failure\n"


def test_records_that_two_sources_have_are_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "first", "-o", "copy.jsonl"]) == 0
    capsys.readouterr()
    assert main.run(["export", "first", "copy.jsonl", "-o", "both.csv"]) == 0
    assert list(import_records("both.csv")) == [_record("first", 0), _record("first", 1, failed=True)]
    told = "wrote both.csv: 2 records of 2 datasets, 1 of them a failure; 2 were there twice\n"
    assert capsys.readouterr().err == told
    assert main.run(["export", "first", "copy.jsonl", "--format", "autodist", "-o", "release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_records"] == 2


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "first", "-o", "first.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": "first.jsonl",
        "format": "jsonl",
        "studies": ["autosync-studies/first"],
        "num_records": 2,
        "num_failed": 1,
        "left_out": [],
    }


def test_records_that_cannot_be_read_stop_the_export_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    newer = record_to_plain(_record("third", 0)) | {"schema": "autosync.record/7"}
    _make_study("third", [newer, _record("third", 1)])
    assert main.run(["export", "-o", "all.csv"]) == 2
    assert not Path("all.csv").exists()
    told = capsys.readouterr().err
    assert told.startswith("error: autosync-studies/third/journal.log:3: third.trials[0].record.schema: version 7 of ")
    assert told.endswith("; upgrade autosync; --skip-unreadable writes all the others\n")
    assert main.run(["export", "-o", "all.csv", "--skip-unreadable", "--json"]) == 0
    assert len(list(import_records("all.csv"))) == 4
    captured = capsys.readouterr()
    assert captured.err.startswith("left out: autosync-studies/third/journal.log:3: third.trials[0].record.schema: ")
    (left_out,) = json.loads(captured.out)["left_out"]
    assert "third.trials[0]" in left_out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["frist", "-o", "a.csv"], "error: unknown study 'frist' (known: first, second); did you mean 'first'?"),
        (["no/such", "-o", "a.csv"], "error: no/such is not there (a store, a study, a folder with "),
        ([".", "-o", "a.csv"], "error: . holds no records (a store, a study, a folder with "),
        (["-o", "a.xlsx"], "error: a.xlsx: the name tells no format (the name ends with .parquet, .csv, .jsonl)"),
        (["--format", "csv", "-o", "a.parquet"], "error: a.parquet is no name for csv (a name that ends with "),
        (["--format", "xlsx", "-o", "a.xlsx"], "error: invalid value for '--format'"),
        (["first"], "error: missing option '-o'"),
        (["-o", "autosync-studies"], "error: autosync-studies is a folder (the output is a file)"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1
    assert not Path(arguments[-1]).is_file()


def test_a_file_is_replaced_with_force_only(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("mine", encoding="utf-8")
    assert main.run(["export", "-o", "mine.csv"]) == 2
    assert capsys.readouterr().err == "error: mine.csv exists (no file is replaced unasked); --force replaces it\n"
    assert Path("mine.csv").read_text(encoding="utf-8") == "mine"
    assert main.run(["export", "-o", "mine.csv", "--force"]) == 0
    assert len(list(import_records("mine.csv"))) == 3


def test_without_any_study_there_is_nothing_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main.run(["export", "-o", "all.csv"]) == 2
    assert capsys.readouterr().err.startswith("error: there are no studies in ./autosync-studies (at least one study)")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["export", "--help"]) == 0
    assert "autosync export autosync-studies/resnet50 --format parquet -o records.parquet" in capsys.readouterr().out
