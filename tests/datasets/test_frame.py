"""Records as a pandas table."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from autosync.datasets.dataset import Dataset
from autosync.datasets.export import export
from autosync.datasets.frame import to_frame
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.datasets.table import COLUMNS
from autosync.errors import InputError

MakeRecord = Callable[..., Record]


def test_a_row_holds_what_its_record_holds(make_record: MakeRecord, make_failed: MakeRecord) -> None:
    measured, failed = make_record(), make_failed()
    frame = to_frame([measured, failed])
    assert measured.measurement is not None
    assert failed.failure is not None
    assert frame["median_seconds"][0] == measured.measurement.median_seconds
    assert frame["strategy"][0] == measured.strategy
    assert frame["started"][0] == pd.Timestamp(measured.started)
    assert pd.isna(frame["median_seconds"][1])
    assert pd.isna(frame["num_warmup_steps"][1])
    assert frame["failure_kind"].tolist()[1] == failed.failure.kind


def test_the_columns_do_not_depend_on_the_records(make_record: MakeRecord) -> None:
    frame = to_frame([make_record()])
    assert list(frame.columns) == [name for name in COLUMNS if name not in {"schema", "checksum"}]
    empty = to_frame([])
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == frame.dtypes.to_dict()


def test_any_dataset_becomes_a_table(make_record: MakeRecord, tmp_path: Path) -> None:
    record = make_record()
    RecordStore(tmp_path / "store").append(record)
    export([record], tmp_path / "records.csv")
    for path in (tmp_path / "store", tmp_path / "records.csv"):
        pd.testing.assert_frame_equal(Dataset(path).to_frame(), to_frame([record]))


def test_an_unreadable_record_is_an_error_unless_it_is_reported(make_record: MakeRecord, tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.append(make_record())
    with store.records_file.open("a", encoding="utf-8") as file:
        file.write("{\n")
    with pytest.raises(InputError, match="no JSON"):
        Dataset(tmp_path).to_frame()
    problems: list[object] = []
    assert len(Dataset(tmp_path).to_frame(report=problems.append)) == len(problems) == 1
