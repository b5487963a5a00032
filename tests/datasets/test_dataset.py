"""A dataset stays what it is when records are exported into its folder; a file takes the specs beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.datasets.dataset import Dataset, file_hint
from autosync.datasets.export import export
from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.parquet_folder import RECORDS_FILE, pack
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.errors import Problem
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

MakeRecord = Callable[..., Record]
MakeStudy = Callable[..., Path]

SPECS = (model_spec(load_model("ncf")), cluster_spec(load_cluster("2-hosts")))


@pytest.fixture
def records(make_record: MakeRecord) -> list[Record]:
    return [make_record(trial=number, model_spec=SPECS[0].spec_id, cluster_spec=SPECS[1].spec_id) for number in (0, 1)]


def read(path: Path) -> list[Record]:
    problems: list[Problem] = []
    found = list(Dataset(path).records(problems.append))
    assert not problems
    return found


@pytest.mark.parametrize("name", ["records.parquet", "records.jsonl"])
def test_an_export_hides_no_study_and_no_dataset(
    name: str, tmp_path: Path, records: list[Record], make_study: MakeStudy
) -> None:
    study = make_study(tmp_path / "study", records)
    store = RecordStore(tmp_path / "store")
    for spec in SPECS:
        store.add_spec(spec)
    store.extend(records)
    pack(records, SPECS, tmp_path / "packed")
    for folder, kind in ((study, "study"), (store.path, "store"), (tmp_path / "packed", "packed")):
        if not (folder / name).exists():
            export(records[:1], folder / name)
        assert Dataset(folder).kind == kind
        assert read(folder) == records


def test_a_file_has_the_specs_that_are_packed_beside_it(tmp_path: Path, records: list[Record]) -> None:
    pack(records, SPECS, tmp_path / "packed")
    beside, alone = tmp_path / "packed" / RECORDS_FILE, tmp_path / RECORDS_FILE
    assert {spec.spec_id for spec in Dataset(beside).specs()} == {spec.spec_id for spec in SPECS}
    alone.write_bytes(beside.read_bytes())
    assert Dataset(alone).specs() == []
    assert file_hint(alone) == "name the study or folder; a single file holds no models and clusters"
    assert file_hint(beside) == file_hint(tmp_path) == ""
