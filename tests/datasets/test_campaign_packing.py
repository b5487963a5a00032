"""What a campaign ships: packed records with drift told anew, none lost unasked, and taken up again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.machine_drift import REFERENCE_ORIGIN, flag_drift
from autosync.datasets.parquet_folder import read_packed, unpack
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.errors import InputError
from benchmarks.dataset.collect_dataset import packed
from tests.datasets.campaign_fakes import COMBINATIONS, STEPS, Services, campaign, collector, strategies


def pack_campaign(store: Path, output: Path, **options: Any) -> dict[str, Any]:
    return packed(campaign(), COMBINATIONS, RecordStore(store), output, **({"force": False} | options))


def test_a_campaign_whose_store_is_gone_goes_on_from_what_was_packed(tmp_path: Path) -> None:
    collector(tmp_path / "whole", Services()).collect()
    with pytest.raises(KeyboardInterrupt):
        collector(tmp_path / "cut", Services(stops_at=12)).collect()
    before = list(RecordStore(tmp_path / "cut").records())
    pack_campaign(tmp_path / "cut", tmp_path / "packed")
    assert unpack(tmp_path / "packed", RecordStore(tmp_path / "new")) == len(before) == 11
    # To the bit, and in the order of time: what comes next follows from it.
    assert list(RecordStore(tmp_path / "new").records()) == before
    assert {spec.spec_id for spec in RecordStore(tmp_path / "new").specs()} == {one.model_spec for one in before} | {
        one.cluster_spec for one in before
    }
    assert collector(tmp_path / "new", Services()).collect()
    assert strategies(tmp_path / "new") == strategies(tmp_path / "whole")
    found = list(RecordStore(tmp_path / "new").records())
    # A second time there is nothing to take up, and packing again is the union.
    assert unpack(tmp_path / "packed", RecordStore(tmp_path / "new")) == 0
    assert pack_campaign(tmp_path / "new", tmp_path / "packed")["num_records"] == len(found)
    assert sorted(read_packed(tmp_path / "packed"), key=lambda record: record.trial) == flag_drift(found)
    assert len({record.trial for record in found}) == len(found)


def is_drifting(record: Record) -> bool:
    return record.measurement is not None and "drifting_machine" in record.measurement.flags


def test_drift_is_told_anew_with_all_references(tmp_path: Path) -> None:
    """In the first half the machine was slow, as its end did not know; with the second half the usual time is known."""
    with pytest.raises(KeyboardInterrupt):
        collector(tmp_path / "first", Services(stops_at=12, steps=replace(STEPS, seconds=0.06))).collect()
    assert pack_campaign(tmp_path / "first", tmp_path / "packed")["num_flagged"] == 0
    unpack(tmp_path / "packed", RecordStore(tmp_path / "second"))
    collector(tmp_path / "second", Services()).collect()
    drifting = [
        record.trial for record in flag_drift(RecordStore(tmp_path / "second").records()) if is_drifting(record)
    ]
    assert set(range(8)) <= set(drifting)
    # What was measured meanwhile was measured once more, and the better trial ships; references stay as they are.
    assert pack_campaign(tmp_path / "second", tmp_path / "packed")["num_replaced"] >= 6
    shipped = [record for record in read_packed(tmp_path / "packed") if is_drifting(record)]
    assert shipped
    assert {record.origin for record in shipped} == {REFERENCE_ORIGIN}
    # The flags are of the look, not of the trials: taken up again they are gone.
    unpack(tmp_path / "packed", RecordStore(tmp_path / "third"))
    measured = {record.trial: record for record in RecordStore(tmp_path / "second").records()}
    taken_up = list(RecordStore(tmp_path / "third").records())
    assert taken_up == [measured[record.trial] for record in taken_up]
    assert len(taken_up) == len(list(read_packed(tmp_path / "packed")))


def test_packing_loses_no_record_unasked(tmp_path: Path) -> None:
    collector(tmp_path / "old", Services()).collect()
    pack_campaign(tmp_path / "old", tmp_path / "packed")
    with pytest.raises(KeyboardInterrupt):
        collector(tmp_path / "new", Services(stops_at=5, steps=replace(STEPS, seconds=0.04))).collect()
    with pytest.raises(InputError, match="records that the store has not"):
        pack_campaign(tmp_path / "new", tmp_path / "packed")
    with pytest.raises(InputError, match="has another trial 0 of tried than"):
        unpack(tmp_path / "packed", RecordStore(tmp_path / "new"))
    assert len(list(RecordStore(tmp_path / "new").records())) == 4
    assert pack_campaign(tmp_path / "new", tmp_path / "packed", force=True)["num_records"] == 4


def test_what_was_never_packed_cannot_be_taken_up(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no dataset"):
        unpack(tmp_path, RecordStore(tmp_path / "store"))
