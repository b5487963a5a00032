"""A study that is killed at random moments loses nothing and repeats nothing; two tuners share one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).with_name("interrupted_main.py")


def _run(*arguments: str | Path) -> dict[str, int]:
    ended = subprocess.run(
        [sys.executable, str(MAIN), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, int] = json.loads(ended.stdout)
    assert found["ended_well"], ended.stderr
    return found


@pytest.mark.parametrize("num_kills", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_killed_at_random_moments(num_kills: int, tmp_path: Path) -> None:
    num_trials = 6 * num_kills
    found = _run("killed", tmp_path, str(num_kills), str(num_trials))
    assert found["has_best"]
    assert (found["num_lost"], found["num_repeated"]) == (0, 0)
    assert found["num_records"] == num_trials
    assert found["num_died"] > num_kills / 2


@pytest.mark.parametrize(
    "scheme", ["sqlite:///{}/team.db", pytest.param("journal:{}/team.log", marks=pytest.mark.slow)]
)
@pytest.mark.timeout(300)
def test_two_tuners_share_a_study(scheme: str, tmp_path: Path) -> None:
    url = scheme.format(tmp_path)
    found = _run("together", tmp_path, url, "24")
    assert found["num_repeated"] == 0
    assert found["num_unfinished"] == 0
    assert 24 <= found["num_records"] <= 25
    assert found["num_tuners"] == 2
