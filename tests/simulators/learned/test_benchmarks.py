"""The benchmark that judges simulators, and the training of the ranker, on invented trials."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "simulator_accuracy"
_TOOLS = Path(__file__).parents[3] / "tools"


def _run(script: Path, *arguments: str) -> str:
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_all_simulators_are_judged_on_what_they_have_not_seen(
    tmp_path: Path, make_store: Callable[..., Path], make_disturbed: Callable[[int, int], list[Record]]
) -> None:
    store = make_store(tmp_path / "store", numbers=range(4), count=14)
    for record in make_disturbed(0, 3):
        RecordStore(store).append(record)
    few = ("--least", "10", "--trials", "6", "--few", "3", "--draws", "1")
    result = tmp_path / "accuracy.json"
    script = _BENCHMARKS / "simulator_accuracy.py"
    command = [sys.executable, str(script), "--records", str(store), *few]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    result.write_text(done.stdout)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if all(one["holds"] for one in document["verdicts"]) else 1), done.stderr[-2000:]
    assert document["records"] == 4 * 14
    assert len(document["targets"]) == 4
    assert {"analytical", "timeline"} <= document["total"]["as they are"].keys()
    assert {"timeline", "learned", "linear", "sequence"} <= document["total"]["after trials"].keys()
    assert {"learned, no trial", "learned, 3 trials"} <= document["total"]["transfer"].keys()
    for target in document["targets"]:
        assert target["after trials"]["learned"]["num_strategies"] == target["strategies"] - 6
    assert len(document["bounds"]) == 4
    assert not any(bound["num_faster"] for bound in document["bounds"])
    assert sum(bound["num_exact"] for bound in document["bounds"]) == 4 * 14 + 3
    assert "4 combinations are judged by (at least 6)" in document["missing"]
    assert sum("random strategies" in what for what in document["missing"]) == 4
    assert document["verdicts"][-1]["holds"]
    assert document["model_held_out"].keys() == set(document["models"])
    tables = _run(script, "--markdown", str(result))
    assert tables.count("### ") == 8


def test_what_is_asked_for_is_held_against_the_worst_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = importlib.import_module("benchmarks.simulator_accuracy.verdict").verdicts
    good = {"pair_ranking": 0.98, "median_error": 0.04, "top_regret": 0.0, "top5_regret": 0.0}
    poor = {"pair_ranking": 0.94, "median_error": 0.06, "top_regret": 0.1, "top5_regret": 0.01}
    document: dict[str, Any] = {
        "trials": 50,
        "few": 10,
        "targets": [
            {"model": "a", "cluster": "x", "as they are": {"timeline": good}},
            {"model": "b", "cluster": "y", "as they are": {"timeline": poor}, "after trials": {"learned": good}},
        ],
        "total": {"after trials": {"learned": good}, "transfer": {"learned, 10 trials": poor}},
        "bounds": [{"model": "a", "cluster": "x", "num_faster": 0}, {"model": "b", "cluster": "y", "num_faster": 2}],
    }
    found = [(one["found"], one["where"], one["holds_in"], one["holds"]) for one in verdicts(document)]
    assert found == [
        (0.94, "b on y", [1, 2], False),
        (0.06, "b on y", [1, 2], False),
        (0.01, "b on y", [2, 2], True),
        (0.98, "b on y", [1, 1], True),
        (0.0, "b on y", [1, 1], True),
        (0.94, "", None, False),
        (2, "b on y", [1, 2], False),
    ]


@pytest.fixture
def make_disturbed(
    make_model: Callable[..., Any], make_cluster: Callable[..., Any], make_trials: Callable[..., list[Record]]
) -> Callable[[int, int], list[Record]]:
    """Trials of a store's model of that number during which the processors were busy."""

    def make(number: int, count: int) -> list[Record]:
        model, cluster = make_model(number), make_cluster(number)
        found = []
        for record in make_trials(model, cluster, count, seed=9):
            assert record.measurement is not None
            found.append(
                dataclasses.replace(
                    record,
                    measurement=dataclasses.replace(record.measurement, flags=("busy_cpu",)),
                    model_spec=model_spec(model).spec_id,
                    cluster_spec=cluster_spec(cluster).spec_id,
                )
            )
        return found

    return make


@pytest.mark.slow
@pytest.mark.parametrize("what", ["learned", "linear", "sequence"])
def test_what_is_trained_is_saved(tmp_path: Path, make_store: Callable[..., Path], what: str) -> None:
    store = make_store(tmp_path / "store", numbers=range(2), count=8)
    shown = _run(_TOOLS / "train_ranker.py", "--records", str(store), "--what", what, "-o", str(tmp_path / "ranker"))
    manifest = json.loads(shown)
    assert manifest["what"] == what
    assert manifest["trained_on"]["num_records"] == 16
    assert manifest["trained_on"]["models"] == ["model0", "model1"]


def test_no_combination_is_large_enough(tmp_path: Path, make_store: Callable[..., Path]) -> None:
    store = make_store(tmp_path / "store", numbers=range(1), count=3)
    command = [sys.executable, str(_BENCHMARKS / "simulator_accuracy.py"), "--records", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert "--least" in done.stderr
