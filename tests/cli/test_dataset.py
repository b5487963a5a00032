"""`autosync dataset`: records are counted, checked and merged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosync.cli.dataset import dataset
from autosync.cli.export import export
from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.parquet_folder import read_packed
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.store import RecordStore
from autosync.errors import InputError
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

MODEL, CLUSTER = model_spec(load_model("ncf")), cluster_spec(load_cluster("2-hosts"))


def record(number: int, seconds: float = 0.1) -> Record:
    return Record(
        study="s",
        trial=number,
        origin="baseline:torch_ddp",
        model_name=MODEL.name,
        model_fingerprint=MODEL.fingerprint,
        cluster_name=CLUSTER.name,
        cluster_fingerprint=CLUSTER.fingerprint,
        model_spec=MODEL.spec_id,
        cluster_spec=CLUSTER.spec_id,
        classes=("exact",),
        measurement=Measurement(
            step_seconds=((seconds,), (seconds,)),
            median_seconds=seconds,
            low_seconds=seconds,
            high_seconds=seconds,
            num_warmup_steps=4,
            peak_memory_bytes=(1, 1),
        ),
        environment={},
        compute="replayed",
        network="emulated",
        started="2026-01-31T12:00:00+00:00",
    )


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path / "store")
    for spec in (MODEL, CLUSTER):
        made.add_spec(spec)
    for number in range(3):
        made.append(record(number))
    return made


def run(*arguments: object) -> str:
    result = CliRunner().invoke(dataset, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_stats_count(store: RecordStore) -> None:
    text = run("stats", store.path)
    assert text.startswith("3 records: 3 measured, 0 failed; 0 of them references\nflagged: 0 (none)\n")
    assert text.splitlines()[-1].split()[:4] == ["ncf", "2-hosts", "3", "3"]
    assert "100.0 ms" in text.splitlines()[-1]
    plain = json.loads(run("stats", store.path, "--json"))
    assert (plain["num_records"], plain["left_out"]) == (3, [])
    assert plain["combinations"][0]["speedup"] == 1


def test_times_are_shown_where_all_records_are_flagged(tmp_path: Path) -> None:
    made = RecordStore(tmp_path / "store")
    for number in range(3):
        one = record(number)
        assert one.measurement is not None
        made.append(replace(one, measurement=replace(one.measurement, flags=("busy_machine",))))
    *_, row, note = run("stats", made.path).splitlines()
    assert row.split()[-7:] == ["100.0", "ms*", "100.0", "ms*", "100.0", "ms*", "1.00"]
    assert note.startswith("* All of these records are flagged")
    [combination] = json.loads(run("stats", made.path, "--json"))["combinations"]
    assert combination["is_all_flagged"]
    assert combination["fastest_seconds"] == 0.1
    made.append(record(3, 0.2))
    [combination] = json.loads(run("stats", made.path, "--json"))["combinations"]
    assert not combination["is_all_flagged"]
    assert combination["fastest_seconds"] == 0.2


def test_what_cannot_be_read_is_told(store: RecordStore) -> None:
    with store.records_file.open("a", encoding="utf-8") as file:
        file.write("{")
    assert json.loads(run("stats", store.path, "--json"))["left_out"][0].startswith(f"{store.records_file}:4: ")
    with pytest.raises(InputError, match="breaks off"):
        run("validate", store.path)
    with pytest.raises(InputError, match="--skip-unreadable"):
        run("merge", store.path, "-o", store.path / "out")
    run("merge", store.path, "-o", store.path / "out", "--skip-unreadable")
    assert len(list(read_packed(store.path / "out"))) == 3
    (kept,) = map(json.loads, (store.path / "out" / "left_out.jsonl").read_text(encoding="utf-8").splitlines())
    assert (kept["file"], kept["line"], kept["text"]) == (str(store.records_file), 4, "{")
    assert "breaks off" in kept["problems"][0]
    run("merge", store.path, "-o", store.path / "out", "--skip-unreadable", "--force")
    assert len((store.path / "out" / "left_out.jsonl").read_text(encoding="utf-8").splitlines()) == 1, "told once"


def test_stats_draw(store: RecordStore, tmp_path: Path) -> None:
    run("stats", store.path, "--picture", tmp_path / "spread.svg")
    assert "3 step times" in (tmp_path / "spread.svg").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="exists"):
        run("stats", store.path, "--picture", tmp_path / "spread.svg")


def test_datasets_are_split_and_merged_again(store: RecordStore, tmp_path: Path) -> None:
    store.append(replace(record(3), origin="sampled"))
    run("split", store.path, "--by", "model", "-o", tmp_path / "models")
    assert [path.name for path in (tmp_path / "models").iterdir()] == [MODEL.name]
    plain = json.loads(run("split", store.path, "--share", "0.5", "-o", tmp_path / "parts", "--json"))
    assert sorted(plain["num_records"].values()) in ([1, 3], [0, 4])
    run("merge", tmp_path / "parts" / "train", tmp_path / "parts" / "test", "-o", tmp_path / "whole")
    assert [one.trial for one in read_packed(tmp_path / "whole")] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="never replaced"):
        run("split", store.path, "--by", "cluster", "-o", tmp_path / "parts")
    for arguments in ((), ("--by", "model", "--share", "0.5")):
        result = CliRunner().invoke(dataset, ["split", str(store.path), "-o", str(tmp_path / "x"), *arguments])
        assert result.exit_code == 2
        assert "either --by or --share" in result.output
    result = CliRunner().invoke(
        dataset, ["split", str(store.path), "-o", str(tmp_path / "x"), "--by", "model", "--seed", "1"]
    )
    assert result.exit_code == 2
    assert "--seed goes with --share" in result.output


def test_a_folder_as_autodist_has_it_comes_in(store: RecordStore, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        export, [str(store.path), "--format", "autodist", "-o", str(tmp_path / "release")], catch_exceptions=False
    )
    assert "3 records of 1 dataset" in result.stderr
    assert run("validate", tmp_path / "release").endswith("3 records, nothing wrong with them\n")
    run("import", tmp_path / "release", "-o", tmp_path / "back")
    assert list(read_packed(tmp_path / "back")) == list(store.records())


def test_without_a_path_the_shipped_records_are_meant(monkeypatch: pytest.MonkeyPatch, store: RecordStore) -> None:
    monkeypatch.setattr("autosync.datasets.dataset.SHIPPED", store.path)
    assert run("stats").startswith("3 records")
    monkeypatch.setattr("autosync.datasets.dataset.SHIPPED", store.path / "none")
    with pytest.raises(InputError, match="no records ship"):
        run("validate")


def test_validation_finds_what_is_wrong_and_where(store: RecordStore) -> None:
    assert run("validate", store.path) == f"{store.path}: 3 records, nothing wrong with them\n"
    store.append(record(1, seconds=0.2))
    with pytest.raises(InputError, match=r"store: s\.trials\[1\]: another record has the same number"):
        run("validate", store.path)


def test_merging_leaves_each_record_once(store: RecordStore, tmp_path: Path) -> None:
    run("merge", store.path, "-o", tmp_path / "one")
    store.append(record(3))
    plain = json.loads(run("merge", store.path, tmp_path / "one", "-o", tmp_path / "both", "--json"))
    assert (plain["num_read"], plain["num_records"]) == (7, 4)
    assert [one.trial for one in read_packed(tmp_path / "both")] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="exists"):
        run("merge", store.path, "-o", tmp_path / "both")
    run("merge", store.path, "-o", tmp_path / "both", "--force")


def test_datasets_that_contradict_each_other_are_not_merged(store: RecordStore, tmp_path: Path) -> None:
    other = RecordStore(tmp_path / "other")
    for spec in store.specs():
        other.add_spec(spec)
    other.extend([record(1, seconds=0.2), record(7)])
    with pytest.raises(InputError, match=r"s\.trials\[1\]: two records of this trial have other contents"):
        run("merge", store.path, other.path, "-o", tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_of_records_that_differ_in_drift_alone_the_flagged_one_stays(store: RecordStore, tmp_path: Path) -> None:
    plain = record(1)
    assert plain.measurement is not None
    flagged = replace(plain, measurement=replace(plain.measurement, flags=("drifting_machine",)))
    other = RecordStore(tmp_path / "other")
    for spec in store.specs():
        other.add_spec(spec)
    other.extend([flagged])
    run("merge", other.path, store.path, "-o", tmp_path / "both")
    found = [one for one in read_packed(tmp_path / "both") if one.trial == 1]
    assert found == [flagged]


def test_what_was_left_out_before_is_not_replaced_unasked(store: RecordStore, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "left_out.jsonl").write_text("my notes", encoding="utf-8")
    with pytest.raises(InputError, match=r"left_out\.jsonl exists"):
        run("merge", store.path, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "left_out.jsonl").read_text(encoding="utf-8") == "my notes"


@pytest.mark.parametrize("is_study", [False, True])
def test_nothing_is_merged_into_a_store_or_a_study(is_study: bool, store: RecordStore, tmp_path: Path) -> None:
    place = store.path
    if is_study:
        place = tmp_path / "study"
        place.mkdir()
        (place / "journal.log").touch()
    before = sorted(place.iterdir())
    with pytest.raises(InputError, match="is a study or a store"):
        run("merge", store.path, "-o", place, "--force")
    assert sorted(place.iterdir()) == before


def test_a_file_alone_lacks_its_specs_and_says_where_they_are(store: RecordStore, tmp_path: Path) -> None:
    run("merge", store.path, "-o", tmp_path / "one")
    run("split", tmp_path / "one" / "records.parquet", "--by", "model", "-o", tmp_path / "models")
    assert len(list(read_packed(tmp_path / "models" / MODEL.name))) == 3
    with pytest.raises(InputError, match="name its study or folder"):
        run("split", store.records_file, "--by", "model", "-o", tmp_path / "more")
