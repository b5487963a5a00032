"""docs/dataset.md: its code runs on a dataset, the shipped one where there is one."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.datasets.dataset import SHIPPED
from autosync.datasets.facts import cluster_spec, model_spec, plan_facts
from autosync.datasets.parquet_folder import pack
from autosync.datasets.schema import Record
from autosync.plan.lowering import lower
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.space import Space

MakeRecord = Callable[..., Record]

PAGE = (Path(__file__).parents[2] / "docs" / "dataset.md").read_text(encoding="utf-8")


def code(language: str, beginning: str) -> str:
    """The one block of code that has this in its first lines."""
    (found,) = [one for one in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if beginning in one]
    return str(found)


def synthetic(make_record: MakeRecord, num_strategies: int) -> tuple[list[Record], list[object]]:
    """Strategies of two models on two clusters that take as long as their wire does."""
    specs: list[object] = []
    records: list[Record] = []
    rng = random.Random(0)
    for model, cluster in ((m, c) for m in ("ncf", "gpt_mini") for c in ("2-hosts", "4-hosts-2-racks")):
        found_model, found_cluster = load_model(model), load_cluster(cluster)
        space = Space(model=found_model, cluster=found_cluster)
        spec_of_model, spec_of_cluster = model_spec(found_model), cluster_spec(found_cluster)
        specs += [spec_of_model, spec_of_cluster]
        for number in range(num_strategies):
            facts = plan_facts(lower(space.sample(rng), found_model, found_cluster), found_cluster)
            seconds = 0.1 + facts.wire_seconds
            record = make_record(
                trial=len(records),
                model_name=model,
                cluster_name=cluster,
                model_spec=spec_of_model.spec_id,
                cluster_spec=spec_of_cluster.spec_id,
                strategy_id=f"s-{number}",
                plan=facts,
            )
            assert record.measurement is not None
            times = {"median_seconds": seconds, "low_seconds": seconds, "high_seconds": seconds}
            records.append(replace(record, measurement=replace(record.measurement, **times)))
    return records, specs


def run_example(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sequence[int]:
    """The shares that the example prints, in percent."""
    monkeypatch.chdir(folder)
    text = code("python", "import xgboost")
    assert len(text.splitlines()) < 30
    exec(compile(text, "docs/dataset.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    return [int(re.fullmatch(r".+: (\d+)% of all pairs of strategies in the right order", line)[1]) for line in lines]  # type: ignore[index]


def test_a_ranker_learns_from_the_file_alone(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records, specs = synthetic(make_record, 40)
    pack(records, specs, tmp_path / "datasets" / "records")  # type: ignore[arg-type]
    shares = run_example(tmp_path, monkeypatch, capsys)
    assert len(shares) == 2
    assert min(shares) > 75


def test_a_ranker_learns_from_the_shipped_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not SHIPPED.is_dir():
        pytest.skip("no records ship with this copy")
    shares = run_example(Path(__file__).parents[2], monkeypatch, capsys)
    assert sum(shares) / len(shares) > 50


def test_duckdb_reads_the_file(tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    records, specs = synthetic(make_record, 3)
    pack(records, specs, tmp_path / "datasets" / "records")  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    rows = duckdb.sql(code("sql", "SELECT")).fetchall()
    assert [row[:3] for row in rows] == [
        (model, cluster, 3) for model in ("gpt_mini", "ncf") for cluster in ("2-hosts", "4-hosts-2-racks")
    ]
    fastest = min(one.measurement.median_seconds for one in records if one.measurement and one.model_name == "gpt_mini")
    assert min(row[3] for row in rows if row[0] == "gpt_mini") == fastest
