"""The dataset card: its tables are made of the records, and those of the shipped ones are up to date."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.parquet_folder import pack
from autosync.datasets.schema import Record
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from make_dataset_card import CARD, PARTS, PICTURE, RECORDS, baselines, filled, load, picture, put_in

MAX_BYTES = 25 * 10**6
"""What a wheel may carry."""
SPECS = (model_spec(load_model("ncf")), cluster_spec(load_cluster("2-hosts")))


def test_tables_are_made_of_the_records(
    tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("make_dataset_card.ENOUGH", 2)
    names = {"model_name": "ncf", "cluster_name": "2-hosts"}
    specs = {"model_spec": SPECS[0].spec_id, "cluster_spec": SPECS[1].spec_id}
    stock = make_record(
        **names, **specs, trial=1, origin="baseline:torch_ddp", strategy=None, strategy_id=None, plan_id=None
    )
    busy = make_record(**names, **specs, trial=2)
    assert busy.measurement is not None
    busy = replace(busy, measurement=replace(busy.measurement, flags=("busy_cpu",)))
    pack([make_record(**names, **specs), stock, busy], SPECS, tmp_path)
    card = "".join(f"<!-- begin {name} -->\nold\n<!-- end {name} -->\n" for name in PARTS)
    found = filled(card, load(tmp_path))
    assert "old" not in found
    assert "| records | 2: 2 measured, 0 failed |" in found
    assert "| 1 (33.3% of all): `busy_cpu` 1 |" in found
    assert "| ncf | 2-hosts | 2 | 0 | 0 | 130.0 ms | 130.0 ms | 130.0 ms | 1.00 |" in found
    assert "- backend gloo, python 3.11.9, torch 2.13.0: 2 records" in found
    assert filled(found, load(tmp_path)) == found
    assert "2 step times" in picture(load(tmp_path))


def test_results_of_simulators_come_from_their_benchmark() -> None:
    figures = {"pair_ranking": 0.9, "median_error": 0.05, "top_regret": 0.02}
    rows = {"ncf": {"records": 7, "timeline": figures, "learned": figures | {"pair_ranking": None}}}
    text = baselines({"model_held_out": rows, "cluster_held_out": {}})
    assert "| ncf | 7 | 0.900 | 5.0% | 2.0% |  | 5.0% | 2.0% |" in text
    card = "before <!-- begin baselines -->\nold\n<!-- end baselines --> after"
    assert put_in(card, "baselines", text) == card.replace("old", text)


def test_the_card_has_a_place_for_every_table() -> None:
    card = CARD.read_text(encoding="utf-8")
    for name in (*PARTS, "baselines"):
        assert card.count(f"<!-- begin {name} -->") == card.count(f"<!-- end {name} -->") == 1


def test_the_card_is_of_the_shipped_records() -> None:
    if not RECORDS.is_dir():
        pytest.skip("no records ship with this copy")
    dataset = load(RECORDS)
    card = CARD.read_text(encoding="utf-8")
    assert filled(card, dataset) == card, "python tools/make_dataset_card.py"
    assert dataset.num_bytes <= MAX_BYTES
    assert PICTURE.read_text(encoding="utf-8") == picture(dataset)
