"""A store grows by whole records, and what is not one is told with its line."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Record, signed
from autosync.datasets.store import RecordStore, find_store
from autosync.errors import DocumentError, InputError, OperationError, Problem
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

MakeRecord = Callable[..., Record]


def test_what_is_appended_is_there(tmp_path: Path, make_record: MakeRecord) -> None:
    store = RecordStore(tmp_path / "store")
    assert list(store.records()) == []
    records = [make_record(trial=number) for number in range(3)]
    for record in records:
        store.append(record)
    assert list(find_store(store.path).records()) == records


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_torn_line_is_told_and_mended(kept: int, tmp_path: Path, make_record: MakeRecord) -> None:
    store = RecordStore(tmp_path)
    store.append(make_record(trial=0))
    whole = store.records_file.read_bytes()
    store.append(make_record(trial=1))
    torn = store.records_file.read_bytes()[len(whole) :]
    # All of the line but its end is a record that a crash kept from being called one; jsonio keeps that too.
    store.records_file.write_bytes(whole + torn[: kept if kept > 0 else len(torn) // 2])
    problems: list[Problem] = []
    assert [record.trial for record in store.records(report=problems.append)] == [0]
    assert [(problem.line, problem.what) for problem in problems] == [(2, "the last line breaks off")]
    store.append(make_record(trial=2))
    assert [record.trial for record in store.records()] == [0, 2]


def _append_forever(store: RecordStore, make_record: MakeRecord) -> None:
    for number in itertools.count(1):
        store.append(make_record(trial=number))


def test_a_disk_without_room_is_named_and_what_was_appended_stays(
    make_record: MakeRecord, mount_disk: Callable[[int], Path], fill_disk: Callable[[Path], Path]
) -> None:
    disk = mount_disk(512)
    store = RecordStore(disk / "store")
    store.append(make_record(trial=0))
    filler = fill_disk(disk)
    # The page that the file has begun takes some more.
    with pytest.raises(OSError, match="No space left on device") as raised:
        _append_forever(store, make_record)
    kept = list(store.records())
    assert [record.trial for record in kept] == list(range(len(kept)))
    assert raised.value.filename == str(store.records_file)
    spec = model_spec(load_model("ncf"))
    with pytest.raises(OSError, match="No space left on device") as raised:
        store.add_spec(spec)
    assert raised.value.filename == str(store.specs_folder / f"model-{spec.spec_id}.json")
    assert list(store.specs()) == []
    filler.unlink()
    store.add_spec(spec)
    store.append(make_record(trial=1000))
    assert list(store.records()) == [*kept, make_record(trial=1000)]
    assert list(store.specs()) == [spec]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{\n", "no JSON"),
        (b"\xff\n", "no JSON"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b"3\n", "the file holds no fields"),
        (b'{"schema": "autosync.record/2"}\n', "version 2 of autosync.record is newer"),
        (b'{"schema": "autosync.cluster/1"}\n', "this is no record file"),
    ],
)
def test_a_foreign_line_is_told_and_the_others_are_read(
    line: bytes, what: str, tmp_path: Path, make_record: MakeRecord
) -> None:
    store = RecordStore(tmp_path)
    store.append(make_record(trial=0))
    with store.records_file.open("ab") as file:
        file.write(line)
    store.append(make_record(trial=1))
    problems: list[Problem] = []
    assert [record.trial for record in store.records(report=problems.append)] == [0, 1]
    assert problems[0].line == 2
    assert what in problems[0].what
    with pytest.raises(DocumentError, match=r"records\.jsonl:2"):
        list(store.records())


def test_specs_are_there_once_and_as_they_were(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    found = [model_spec(load_model(name)) for name in ("ncf", "ncf@x2")]
    found.append(cluster_spec(load_cluster("4-hosts")))
    assert found[0].fingerprint == found[1].fingerprint
    for spec in (*found, *found):
        store.add_spec(spec)
    assert {spec.spec_id: spec for spec in store.specs()} == {spec.spec_id: spec for spec in found}
    assert [spec.kind for spec in store.specs()] == ["model", "model", "cluster"]


def test_a_spec_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.add_spec(cluster_spec(load_cluster("4-hosts")))
    (path,) = store.specs_folder.iterdir()
    path.write_text(path.read_text(encoding="utf-8").replace("500 Mbit/s", "501 Mbit/s"), encoding="utf-8")
    with pytest.raises(DocumentError, match="a spec is named after its hash"):
        list(store.specs())


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "store")
    with store.held(), pytest.raises(OperationError, match="another process"), RecordStore(store.path).held():
        pass
    with store.held():
        pass


def test_a_folder_without_records_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no store of records"):
        find_store(tmp_path)


def test_lines_are_records_as_json_lines_have_them(tmp_path: Path, make_record: MakeRecord) -> None:
    store = RecordStore(tmp_path)
    store.append(make_record())
    assert json.loads(store.records_file.read_text(encoding="utf-8")) == signed(make_record())
