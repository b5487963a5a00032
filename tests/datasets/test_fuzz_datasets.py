"""Damaged datasets end in an error with the file's name, or in what was written: benchmarks/fuzz_datasets.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_datasets.py"


@pytest.mark.parametrize("count", [14, pytest.param(350, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_damaged_datasets_of_every_form(count: int) -> None:
    command = [sys.executable, SCRIPT, "--count", str(count), "--seed", "20261121"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["failures"] == []
    assert done.returncode == 0
    assert len(result["exits"]) == 7
    # What is damaged is refused, and with --skip-unreadable the rest is taken.
    assert all(min(exits["0"], exits["2"]) > 0 for exits in result["exits"].values())
