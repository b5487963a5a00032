"""Real models train as under stock DDP, whatever strategy synchronises them: every line of the suite's table.

All are slow but one, and those of libraries are skipped where the extra `models` is not installed.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT_SECONDS = 600.0


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


zoo = load("zoo")
habits = load("habits")


def run_suite(*arguments: str) -> list[dict[str, Any]]:
    """The rows of the suite's table."""
    process = subprocess.Popen(
        (sys.executable, HERE / "suite.py", *arguments),
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert output, log
    rows: list[dict[str, Any]] = json.loads(output)["rows"]
    assert process.returncode == any(row["verdict"] not in {"within", "does not apply"} for row in rows)
    return rows


def told(row: dict[str, Any]) -> str:
    return json.dumps(row, indent=1)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    "entry",
    [pytest.param(each, id=each.name) for each in (*zoo.ENTRIES, *habits.HABITS) if not each.sparse],
)
def test_every_strategy_trains_to_the_parameters_of_stock_ddp(entry: Any) -> None:
    if importlib.util.find_spec(entry.library) is None:
        pytest.skip(f"{entry.library} is not installed: pip install '.[models]'")
    check(run_suite(entry.name))


def check(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 6
    for row in rows:
        if row["verdict"] == "does not apply":
            assert row["strategy"] == "factors", told(row)
            assert "no linear variable" in row["why"], told(row)
        else:
            assert row["verdict"] == "within", told(row)


@pytest.mark.slow
def test_a_model_with_sparse_gradients_and_a_strategy_that_is_too_far_off() -> None:
    *rows, lossy = run_suite("recommender", "--also-lossy")
    check(rows)
    assert lossy["verdict"] == "too far", told(lossy)
    last = lossy["steps"][-1]
    assert last["distance"] > 10 * last["allowed"], told(lossy)


def test_fifteen_models_are_of_libraries_that_others_wrote() -> None:
    libraries = [entry.library for entry in zoo.ENTRIES if entry.library != "torch"]
    assert len(libraries) >= 15
    assert set(libraries) == {"peft", "timm", "torchvision", "transformers"}
