"""A dataset in three Parquet files reads back as it was, each record and each spec once."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pandas as pd
import pytest

from autosync.datasets import parquet_folder
from autosync.datasets.facts import cluster_spec, model_spec, plan_facts
from autosync.datasets.parquet_folder import (
    DISTURBED_FILE,
    RECORDS_FILE,
    SPECS_FILE,
    distinct,
    pack,
    read_packed,
    read_specs,
)
from autosync.datasets.schema import Record
from autosync.errors import DocumentError, InputError
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset

MakeRecord = Callable[..., Record]

MODEL, CLUSTER = load_model("ncf"), load_cluster("4-hosts-2-racks")
SPECS = (model_spec(MODEL), cluster_spec(CLUSTER))


@pytest.fixture
def full(make_record: MakeRecord) -> Record:
    """A record with all that a campaign knows."""
    record = make_record(
        model_spec=SPECS[0].spec_id,
        cluster_spec=SPECS[1].spec_id,
        plan=plan_facts(lower(build_preset("ddp", MODEL, CLUSTER), MODEL, CLUSTER), CLUSTER),
        dilation=2.0,
        compute="replayed",
    )
    assert record.measurement is not None
    measurement = replace(record.measurement, other_cpu_share=0.02, flags=("not_steady", "noisy"))
    return replace(record, measurement=measurement)


def test_records_and_specs_read_back_as_they_were(tmp_path: Path, full: Record, make_failed: MakeRecord) -> None:
    records = [full, make_failed(trial=1, message='a comma, a "quote" and\na line'), replace(full, trial=2)]
    unused = model_spec(load_model("dlrm"))
    assert pack([*records, *records], [*SPECS, unused], tmp_path) == 3
    assert list(read_packed(tmp_path)) == sorted(records, key=lambda record: record.trial)
    assert sorted(read_specs(tmp_path), key=lambda spec: spec.kind, reverse=True) == list(SPECS)


def test_disturbed_records_lie_apart(tmp_path: Path, full: Record) -> None:
    assert full.measurement is not None
    flags = ("noisy", "drifting_machine")
    disturbed = replace(full, trial=0, measurement=replace(full.measurement, flags=flags))
    others = [replace(full, trial=1), replace(full, trial=2)]
    assert pack([disturbed, *others], SPECS, tmp_path) == 3
    assert pd.read_parquet(tmp_path / RECORDS_FILE)["trial"].tolist() == [1, 2]
    assert pd.read_parquet(tmp_path / DISTURBED_FILE)["trial"].tolist() == [0]
    assert list(read_packed(tmp_path)) == [*others, disturbed]
    # Where no record is disturbed any more, none of the old ones stays.
    assert pack(others, SPECS, tmp_path, force=True) == 2
    assert list(read_packed(tmp_path)) == others
    (tmp_path / DISTURBED_FILE).unlink()
    assert list(read_packed(tmp_path)) == others


def test_pandas_reads_both_files(tmp_path: Path, full: Record) -> None:
    pack([full], SPECS, tmp_path)
    assert pd.read_parquet(tmp_path / RECORDS_FILE)["dilation"].tolist() == [2.0]
    assert pd.read_parquet(tmp_path / SPECS_FILE)["name"].tolist() == [CLUSTER.name, MODEL.name]


def test_a_record_without_its_specs_is_refused(tmp_path: Path, full: Record) -> None:
    with pytest.raises(InputError, match="1 specs that records name are missing"):
        pack([full], SPECS[:1], tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_are_replaced_when_asked_to(tmp_path: Path, full: Record) -> None:
    pack([full], SPECS, tmp_path)
    with pytest.raises(InputError, match="exists"):
        pack([full, replace(full, trial=1)], SPECS, tmp_path)
    assert pack([full, replace(full, trial=1)], SPECS, tmp_path, force=True) == 2


def test_no_file_is_replaced_before_all_are_written(
    tmp_path: Path, full: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack([full], SPECS, tmp_path)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()}
    written: list[BinaryIO] = []

    def write_one(_records: Iterable[Record], file: BinaryIO) -> None:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(file)

    monkeypatch.setattr(parquet_folder, "write_parquet", write_one)
    with pytest.raises(OSError, match="No space left on device") as caught:
        pack([replace(full, trial=1)], SPECS, tmp_path, force=True)
    assert caught.value.filename == str(tmp_path / RECORDS_FILE)
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_specs_that_are_none_are_refused(tmp_path: Path, full: Record) -> None:
    pack([full], SPECS, tmp_path)
    table = pd.read_parquet(tmp_path / SPECS_FILE)
    for changes in ({"name": "x"}, {"fields": "{"}, {"fields": "{}"}, {"spec": "x"}):
        table.assign(**changes).to_parquet(tmp_path / SPECS_FILE)
        with pytest.raises(DocumentError):
            list(read_specs(tmp_path))
    (tmp_path / SPECS_FILE).write_bytes(b"PAR1")
    with pytest.raises(DocumentError, match="no specs in Parquet"):
        list(read_specs(tmp_path))


def test_what_differs_in_anything_is_another_record(full: Record) -> None:
    assert list(distinct([full, replace(full, trial=1), full])) == [full, replace(full, trial=1)]


def test_what_a_plan_comes_to() -> None:
    strategy = build_preset("ddp", MODEL, CLUSTER)
    facts = plan_facts(lower(strategy, MODEL, CLUSTER), CLUSTER)
    assert facts.num_messages == len(strategy.messages)
    # Every rank's rows go to three others, each dense message round a ring of four, there and back.
    rows = sum(message.synchroniser.kind == "sparse_gather" for message in strategy.messages)
    assert facts.num_sends == 12 * rows + 24 * (facts.num_messages - rows)
    # The uplinks are slower than the hosts' links; half of the ring's way crosses none.
    assert facts.wire_seconds > facts.sent_bytes / 4 / CLUSTER.nodes[0].bandwidth_out


def test_nothing_is_written_where_something_is_in_the_way(tmp_path: Path, full: Record) -> None:
    """Not even beside it: the folder would hold the records of one dataset and the specs of another."""
    (tmp_path / RECORDS_FILE).write_bytes(b"mine")
    with pytest.raises(InputError, match=f"{RECORDS_FILE} exists"):
        pack([full], SPECS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [RECORDS_FILE]
    assert (tmp_path / RECORDS_FILE).read_bytes() == b"mine"
