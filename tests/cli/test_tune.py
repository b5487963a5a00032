"""`autosync tune` as a command: its output, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Shell

TASKS = Path(__file__).parents[1] / "search" / "tiny.py"


def test_json_is_one_document_and_the_study_can_be_exported(shell: Shell) -> None:
    summary = shell.json("tune", TASKS, "--cluster", "local-2", "--trials", "2", "--study", "s", "-o", "best.yaml")
    assert summary["schema"] == "autosync.summary/1"
    assert summary == json.loads(Path("autosync-studies/s/summary.json").read_text())
    assert "trial 2 of 2: " in shell.err
    assert Path("best.yaml").exists()
    assert shell.run("export", "s", "-o", "records.jsonl") == 0, shell.err
    assert len(Path("records.jsonl").read_text().splitlines()) == 2


def test_the_verdict_for_people(shell: Shell) -> None:
    assert shell.run("tune", TASKS, "--cluster", "local-2", "--trials", "1", "--study", "s") == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0] == "1 strategy tried. Stock DDP and the fastest others, measured again in turn:"
    assert lines[2].split() == ["ms", "a", "step", "(95", "%", "interval)", "speedup", "(95", "%", "interval)"]
    assert lines[3].split()[:2] == ["stock", "DDP"]
    assert lines[3].endswith("1.00 (1.00 to 1.00)")
    assert lines[5] == "Nothing was there to compare with stock DDP: keep it."
    assert lines[-2] == "bundle: autosync-studies/s/best.yaml (stock DDP's buckets as a strategy)"
    assert lines[-1] == "study:  autosync-studies/s"


def test_all_trials_failed(shell: Shell) -> None:
    target = f"{TASKS}:fails_in_trials"
    assert shell.run("tune", target, "--cluster", "local-2", "--trials", "1", "--study", "s", "--json") == 1
    assert shell.out == ""
    assert "error: all 1 trials failed; the first: " in shell.err
    assert "out of luck" in shell.err
    assert Path("autosync-studies/s/journal.log").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.yaml", "--cluster", "local-2"), "nowhere.yaml:1: cannot be read: no such file"),
        (("nowhere.py", "--cluster", "local-2"), "nowhere.py:1: no such file"),
        ((TASKS, "--cluster", "nowhere"), "nowhere"),
        ((TASKS, "--cluster", "local-2", "--study", "a/b"), "'a/b' is no name of a study"),
        ((TASKS, "--cluster", "local-2", "--budget", "soon"), "soon"),
        ((TASKS, "--cluster", "local-2", "--trials", "-1"), "-1"),
        ((TASKS, "--cluster", "local-2", "-o", "there.yaml"), "there.yaml exists"),
        ((TASKS, "--cluster", "local-2", "-o", "."), ". is a folder"),
        ((TASKS,), "--cluster"),
    ],
)
def test_bad_input(arguments: tuple[str | Path, ...], words: str, shell: Shell) -> None:
    Path("there.yaml").write_text("mine")
    assert shell.run("tune", *arguments) == 2
    assert words in shell.err
    assert shell.out == ""
    assert Path("there.yaml").read_text() == "mine"
    assert not Path("autosync-studies").exists()


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A tuning run of its own that hangs in its first trial."""
    command = [sys.executable, "-c", "from autosync.cli.main import main; main()"]
    process = subprocess.Popen(
        [*command, "tune", f"{TASKS}:hangs_in_trials", "--cluster", "local-2", "--study", "s"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_ctrl_c_ends_the_ranks_and_keeps_the_study(interrupted: subprocess.Popen[str], tmp_path: Path) -> None:
    logs = tmp_path / "autosync-studies" / "s" / "logs" / "ranks-1"
    deadline = time.monotonic() + 60
    while len(ranks := _children(interrupted.pid)) < 2 or not (logs / "rank-1.log").exists():
        assert time.monotonic() < deadline, "the trial did not begin"
        assert interrupted.poll() is None, interrupted.communicate()
        time.sleep(0.05)
    interrupted.send_signal(signal.SIGINT)
    out, err = interrupted.communicate(timeout=30)
    assert interrupted.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "interrupted"
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]
    assert (tmp_path / "autosync-studies" / "s" / "journal.log").exists()


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
