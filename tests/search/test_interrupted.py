"""A study that is killed at random moments loses nothing and repeats nothing. Two tuners can share a study."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MAIN = Path(__file__).with_name("interrupted_main.py")
DRIVERS = ("psycopg", "psycopg2")


def _run(*arguments: str | Path | int) -> dict[str, int]:
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


def _check_that_nothing_is_lost(found: dict[str, int], num_kills: int, num_trials: int) -> None:
    assert found["has_best"]
    assert (found["num_lost"], found["num_repeated"], found["num_processes_left"]) == (0, 0, 0)
    assert found["num_records"] == num_trials
    # What the proof needs beside what the search has tried, if that is anything, is in the study as well.
    assert found["num_rivals"] > 0
    assert found["num_unrecorded"] == 0
    assert found["num_died"] > num_kills / 2


@pytest.mark.parametrize("num_kills", [3, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_killed_at_random_moments(num_kills: int, tmp_path: Path) -> None:
    num_trials = 6 * num_kills
    _check_that_nothing_is_lost(_run("killed", tmp_path, num_kills, num_trials), num_kills, num_trials)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_random_moments_with_real_ranks(tmp_path: Path) -> None:
    _check_that_nothing_is_lost(_run("killed-for-real", tmp_path, 5, 20), 5, 20)


CODES = {"SIGINT": {130}, "SIGTERM": {143}, "SIGKILL": {137}}
"""How a tuner ends that is struck itself. One whose rank was struck goes on, until it is asked to end or is done."""


@pytest.mark.slow
@pytest.mark.parametrize("num_strikes", [3, 50])
@pytest.mark.timeout(3000)
def test_struck_at_random_moments_inside_trials(num_strikes: int, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(MAIN.with_name("struck_main.py")), str(tmp_path), str(num_strikes)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        timeout=60 * (num_strikes + 2),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    told = found.pop("told")
    for strike in found["strikes"]:
        expected = CODES[strike["signal"]] if strike["victim"] == "tuner" else {0, 130}
        assert strike["code"] in expected, (strike, told)
        assert strike["left"] == 0, strike
    assert sum(strike["is_struck"] for strike in found["strikes"]) > 0.8 * num_strikes, found
    # It goes on, and neither strategy nor search has heard of any of it.
    assert (found["ended"], found["left"]) == (0, 0), told
    assert (found["charged"], found["num_failed_trials"]) == ([], 0), told
    assert set(found["kinds"]) <= {"infrastructure", "launch"}
    assert found["num_outages"] == sum(found["kinds"].values()) > 0, found


def _check_that_a_study_is_shared(url: str, folder: Path, num_trials: int = 24) -> None:
    found = _run("together", folder, url, num_trials)
    assert found["num_repeated"] == 0
    assert found["num_unfinished"] == 0
    assert num_trials <= found["num_records"] <= num_trials + 1
    assert found["num_tuners"] == 2


@pytest.mark.parametrize(
    ("scheme", "num_trials"),
    [
        ("sqlite:///{}/team.db", 12),
        pytest.param("sqlite:///{}/team.db", 24, marks=pytest.mark.slow),
        pytest.param("journal:{}/team.log", 24, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(300)
def test_two_tuners_share_a_study(scheme: str, num_trials: int, tmp_path: Path) -> None:
    _check_that_a_study_is_shared(scheme.format(tmp_path), tmp_path, num_trials)


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server of this test's own; the system's programs and a driver are needed for it."""
    driver = next((name for name in DRIVERS if importlib.util.find_spec(name)), None)
    if driver is None:
        pytest.skip(f"no driver for PostgreSQL is installed ({' or '.join(DRIVERS)})")
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("no PostgreSQL is installed: there is no initdb")
    programs = Path(found).resolve().parent
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(dir="/tmp") as text:
        folder = Path(text)
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        begin = [str(programs / "initdb"), "-D", str(data), "-U", "tuner", "-A", "trust", "--no-sync"]
        subprocess.run(begin, check=True, capture_output=True, user=user, cwd=folder, timeout=100)
        serve = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-F"]
        with subprocess.Popen(serve, user=user, cwd=folder, stderr=subprocess.DEVNULL) as server:
            try:
                _await_server(programs / "pg_isready", folder)
                yield f"postgresql+{driver}://tuner@/postgres?host={folder}"
            finally:
                server.terminate()


def _await_server(is_ready: Path, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run([str(is_ready), "-q", "-h", str(folder)], check=False).returncode != 0:
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_tuners_share_a_study_on_postgresql(postgresql: str, tmp_path: Path) -> None:
    _check_that_a_study_is_shared(postgresql, tmp_path)
