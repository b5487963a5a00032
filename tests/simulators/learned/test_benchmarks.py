"""The benchmark that judges simulators, and the training of the ranker, on trials that were never made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(_BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_all_simulators_are_judged_on_what_they_have_not_seen(tmp_path: Path, make_store: Callable[..., Path]) -> None:
    store = make_store(tmp_path / "store", numbers=range(4), count=14)
    few = ("--least", "10", "--trials", "6", "--few", "3", "--draws", "1", "--without", "ablations")
    result = tmp_path / "accuracy.json"
    result.write_text(_run("simulator_accuracy.py", "--records", str(store), *few))
    document = json.loads(result.read_text())
    assert document["records"] == 4 * 14
    assert len(document["targets"]) == 4
    assert {"analytical", "timeline"} <= document["total"]["as they are"].keys()
    assert {"timeline", "learned", "linear", "sequence"} <= document["total"]["after trials"].keys()
    assert {"learned, no trial", "learned, 3 trials"} <= document["total"]["transfer"].keys()
    for target in document["targets"]:
        assert target["after trials"]["learned"]["num_strategies"] == target["strategies"] - 6
        assert target["bound"]["num_faster"] == 0
    assert all(document["model_matrix"][name][name] is None for name in document["models"])
    tables = _run("simulator_accuracy.py", "--markdown", str(result))
    assert tables.count("### ") == 9


@pytest.mark.slow
@pytest.mark.parametrize("what", ["learned", "linear", "sequence"])
def test_what_is_trained_is_saved(tmp_path: Path, make_store: Callable[..., Path], what: str) -> None:
    store = make_store(tmp_path / "store", numbers=range(2), count=8)
    shown = _run("train_ranker.py", "--records", str(store), "--what", what, "-o", str(tmp_path / "ranker"))
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
