"""Real ranks train what one process would: a slice of `benchmarks/exactness.py`, and cases of its that once failed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
BENCHMARK = HERE.parents[1] / "benchmarks" / "exactness.py"


def run(*arguments: str, limit_seconds: float) -> dict[str, Any]:
    """What the benchmark prints. Its ranks end when it does, whatever ends it."""
    done = subprocess.run(
        (sys.executable, BENCHMARK, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        timeout=limit_seconds,
        check=False,
    )
    assert done.stdout, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_cases_that_once_failed() -> None:
    cases = HERE / "exact_cases.json"
    found = run("--only", str(cases), limit_seconds=200)
    assert found["failures"] == []
    assert found["trained"] == len(json.loads(cases.read_text())["failures"])


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (80, ()),
        pytest.param(600, (), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]),
        pytest.param(200, ("--delays",), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]),
    ],
)
def test_every_preset_and_random_strategies(count: int, options: tuple[str, ...]) -> None:
    found = run("--count", str(count), "--seed", str(count), *options, limit_seconds=240 if count == 80 else 900)
    assert found["failures"] == []
    assert found["trained"] == count
    assert len(found["by_origin"]) == 23, "all exact presets, averages of every step, and samples"
