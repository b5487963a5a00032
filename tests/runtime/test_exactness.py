"""Real ranks train what one process would: a slice of `benchmarks/exactness`, and cases of it that once failed."""

import json
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NUM_PRESETS = 22
"""All exact presets that apply to clusters of equal devices, and averages of every step."""


@pytest.mark.slow
def test_cases_that_once_failed(exactness: Any) -> None:
    cases = HERE / "exact_cases.json"
    found = exactness("--only", str(cases), limit_seconds=200)
    assert found["failures"] == []
    assert found["trained"] == len(json.loads(cases.read_text())["failures"])


@pytest.mark.parametrize(
    ("count", "options"),
    [
        pytest.param(
            12, ("--cluster", "unequal nodes", "--cluster", "2 nodes x 2 and a server"), marks=pytest.mark.timeout(300)
        ),
        pytest.param(12, ("--shares", "--cluster", "2 nodes"), marks=pytest.mark.timeout(300)),
        pytest.param(300, ("--shares",), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]),
        pytest.param(600, (), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]),
        pytest.param(200, ("--delays",), marks=[pytest.mark.slow, pytest.mark.timeout(1000)]),
    ],
)
def test_every_preset_and_random_strategies(exactness: Any, count: int, options: tuple[str, ...]) -> None:
    found = exactness("--count", str(count), "--seed", str(count), *options, limit_seconds=240 if count < 100 else 900)
    assert found["failures"] == []
    assert found["trained"] == count
    # Every third case is a preset, in turn; the others are samples.
    assert len(found["by_origin"]) == min(count // 3, NUM_PRESETS) + 1


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_strategies_over_random_trees(exactness: Any) -> None:
    found = exactness("--count", "1000", "--seed", "29", "--trees", limit_seconds=1900)
    assert found["failures"] == []
    assert found["trained"] == 1000
