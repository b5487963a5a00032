"""`autosync dataset`: records are counted, checked and put together."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosync.cli.dataset import dataset
from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.packed import read_packed
from autosync.datasets.schema import Measurement, Record
from autosync.datasets.store import Store
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
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    for spec in (MODEL, CLUSTER):
        made.add_spec(spec)
    for number in range(3):
        made.append(record(number))
    return made


def run(*arguments: object) -> str:
    result = CliRunner().invoke(dataset, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_stats_count(store: Store) -> None:
    text = run("stats", store.path)
    assert text.startswith("3 records: 3 measured, 0 failed; 0 of them references\nflagged: 0 (none)\n")
    assert text.splitlines()[-1].split()[:4] == ["ncf", "2-hosts", "3", "3"]
    assert "100.0 ms" in text.splitlines()[-1]
    plain = json.loads(run("stats", store.path, "--json"))
    assert (plain["num_records"], plain["left_out"]) == (3, [])
    assert plain["combinations"][0]["speedup"] == 1


def test_what_cannot_be_read_is_told(store: Store) -> None:
    with store.records_file.open("a", encoding="utf-8") as file:
        file.write("{")
    assert json.loads(run("stats", store.path, "--json"))["left_out"][0].startswith(f"{store.records_file}:4: ")
    with pytest.raises(InputError, match="breaks off"):
        run("validate", store.path)
    with pytest.raises(InputError, match="--skip-unreadable"):
        run("merge", store.path, "-o", store.path / "out")
    run("merge", store.path, "-o", store.path / "out", "--skip-unreadable")
    assert len(list(read_packed(store.path / "out"))) == 3


def test_validation_finds_what_is_wrong_and_where(store: Store) -> None:
    assert run("validate", store.path) == f"{store.path}: 3 records, nothing wrong with them\n"
    store.append(record(1, seconds=0.2))
    with pytest.raises(InputError, match=r"store:4: s\.trials\[1\]: another record has the same number"):
        run("validate", store.path)


def test_merging_leaves_each_record_once(store: Store, tmp_path: Path) -> None:
    run("merge", store.path, "-o", tmp_path / "one")
    store.append(record(3))
    plain = json.loads(run("merge", store.path, tmp_path / "one", "-o", tmp_path / "both", "--json"))
    assert (plain["num_read"], plain["num_records"]) == (7, 4)
    assert [one.trial for one in read_packed(tmp_path / "both")] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="exists"):
        run("merge", store.path, "-o", tmp_path / "both")
    run("merge", store.path, "-o", tmp_path / "both", "--force")
