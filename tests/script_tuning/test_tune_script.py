"""Scripts that are tuned while they train, on two real ranks, come out as under stock DDP all the time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.cli import main
from autosync.strategy.bundle import load_bundle
from tests.helpers.stock_ddp import train_under_stock_ddp

SCRIPT = Path(__file__).parent / "scripts" / "long.py"
LIMIT_SECONDS = 280.0
NUM_STEPS = 2000
# A proposer and a simulator that need no time to think: the trials of a test are steps of a short training.
QUICKLY = ("--proposer", "random", "--simulator", "analytical", "--trials", "4", "--study", "s", "-o", "best.yaml")

# Two trainings of hundreds of steps, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and the folder that it ran in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "autosync-studies" / "s" / "summary.json").read_text())
        return found

    def saved(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.folder / f"out-{rank}.pt")
        return found


def _tune(folder: Path, *arguments: str) -> Ended:
    return _command(folder, "--cluster", "local-2", *QUICKLY, *arguments)


def _command(folder: Path, *arguments: str) -> Ended:
    folder.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-P", "-m", "autosync.cli", "tune", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, cwd=folder)
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr, folder=folder)


def _trained(folder: Path, *words: str, num_steps: int = NUM_STEPS) -> Ended:
    """The same script under stock DDP, as torchrun would start it."""
    folder.mkdir(parents=True)
    train_under_stock_ddp(SCRIPT, folder / "out", num_steps, *words)
    return Ended(code=0, out="", err="", folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("adam",),
        (),
        ("clips",),
        ("adam", "logs"),
        ("closure",),
        ("adam", "peeks"),
    ],
)
def test_a_script_that_goes_on_has_the_weights_of_stock_ddp(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = tmp_path / "tuned"
    tuned = _tune(folder, "--keep-training", "--", str(SCRIPT), str(folder / "out"), str(NUM_STEPS), *words)
    assert tuned.code == 0, tuned.err
    assert f"rank 0 | trained {NUM_STEPS} steps" in tuned.out
    summary = tuned.summary
    assert summary["num_trials"] == 4
    assert summary["num_failed_trials"] == 0
    assert 9 < summary["cost"]["num_steps"] < NUM_STEPS
    assert len(summary["contests"]) >= 2
    stock = _trained(tmp_path / "stock", *words)
    for rank in range(2):
        _compare(tuned.saved(rank), stock.saved(rank))


def _compare(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            _compare(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other)
    elif isinstance(expected, torch.Tensor | float):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("freezes", "the script has frozen"),
        ("regularises", "DistributedDataParallel does not synchronise the last backward pass before an update"),
    ],
)
def test_a_script_that_cannot_be_tuned_goes_on_under_stock_ddp(tmp_path: Path, word: str, reason: str) -> None:
    folder = tmp_path / "tuned"
    tuned = _tune(folder, "--keep-training", "--", str(SCRIPT), str(folder / "out"), "40", word)
    assert tuned.code == 0, tuned.err
    # Both ranks refuse, and either may be heard first.
    said = rf"the script goes on under stock DDP, because it cannot be tuned: rank [01]: {reason}"
    assert re.search(said, tuned.err), tuned.err
    assert "rank 1 | trained 40 steps" in tuned.out
    stock = _trained(tmp_path / "stock", word, num_steps=40)
    for rank in range(2):
        _compare(tuned.saved(rank), stock.saved(rank))


def test_a_script_is_stopped_when_the_bundle_is_written(tmp_path: Path) -> None:
    tuned = _tune(tmp_path, "--json", "--", str(SCRIPT), str(tmp_path / "out"), "100000", "clips", "inner")
    assert tuned.code == 0, tuned.err
    summary = json.loads(tuned.out)
    assert summary == tuned.summary
    assert summary["cost"]["num_steps"] < 1000
    bundle = load_bundle(tmp_path / "best.yaml")
    assert bundle.model.name == "long"
    assert bundle.model.clip_norm == 0.5
    assert bundle.model.batch_size == 8
    assert [one.name for one in bundle.model.variables][:2] == ["0.weight", "0.bias"]
    assert bundle.model.optimizer.name == "SGD"
    # It was ended, and not left to its own end; what it has to do at any end was done.
    assert not (tmp_path / "out-0.pt").exists()
    assert all((tmp_path / f"out-left-{rank}").exists() for rank in range(2))
    assert "trained" not in (tmp_path / "autosync-studies" / "s" / "ranks" / "rank-0.log").read_text()
    resumed = _command(tmp_path, "--resume", "s")
    assert resumed.code == 2
    assert "s tuned a script, and cannot be resumed" in resumed.err


@pytest.mark.slow
@pytest.mark.parametrize("is_retuned", [True, False])
def test_a_script_that_becomes_slower_is_told_and_tuned_again(tmp_path: Path, is_retuned: bool) -> None:
    out = tmp_path / "out"
    option = "--retune" if is_retuned else "--keep-training"
    arguments = ("--cluster", "local-2", *QUICKLY, option, "--", str(SCRIPT), str(out), "100000", "files")
    command = (sys.executable, "-P", "-m", "autosync.cli", "tune", *arguments)
    log = (tmp_path / "log").open("w+")
    with log, subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path) as tuning:
        try:
            _await(tmp_path / "log", "tuning took")
            (tmp_path / "out-slow").touch()
            _await(tmp_path / "log", "steps have become slower")
            if is_retuned:
                _await(tmp_path / "log", "tuning took", count=2)
            (tmp_path / "out-end").touch()
            assert tuning.wait(LIMIT_SECONDS) == 0
        finally:
            tuning.kill()
    studies = tmp_path / "autosync-studies"
    summary = json.loads((studies / "s" / "summary.json").read_text())
    drift = summary["drifts"][0]
    assert drift["after_seconds"] > 3 * drift["before_seconds"]
    assert (studies / "s-again-1" / "best.yaml").exists() == is_retuned
    if is_retuned:
        again = json.loads((studies / "s-again-1" / "summary.json").read_text())
        assert again["num_failed_trials"] == 0
        winner = next(one for one in again["contests"] if one["name"] == again["winner"]["name"])
        assert winner["seconds"]["value"] > 0.04
    for rank in range(2):
        assert f"rank {rank} | trained 100000 steps" in (tmp_path / "log").read_text()


def _await(log: Path, words: str, count: int = 1) -> None:
    """Wait until a log has some words so many times."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while log.read_text().count(words) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_script_that_reads_gradients_on_one_rank_is_trained_by_its_own_optimizer(tmp_path: Path) -> None:
    tuned = _tune(tmp_path, "--", str(SCRIPT), str(tmp_path / "out"), "100000", "logs")
    assert tuned.code == 0, tuned.err
    assert "only the script's optimizer may update: it reads gradients (" in tuned.err
    assert tuned.summary["num_failed_trials"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(SCRIPT), "OUT", "30"), "long.py has ended after 29 steps of its optimizer, before tuning was over"),
        # That a script is missing is said by the same words as where none is tuned.
        pytest.param(("missing.py",), "missing.py cannot be read: No such file", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_cannot_be_tuned_ends_with_the_reason(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    tuned = _tune(tmp_path, "--", *arguments)
    assert tuned.code == 1, tuned.err
    assert words in tuned.err
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model.py", "--", "train.py"), "name a MODEL, or a script after --"),
        (("--target", "ddp", "--", "train.py"), "leave out --target"),
        (("model.py", "--keep-training"), "--keep-training and --stop are for a script after --"),
        (("model.py", "--retune"), "--retune is for a script after --"),
        (("--stop", "--retune", "--", "train.py"), "--stop ends the script, and --retune goes on with it"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["tune", "--cluster", "local-2", *QUICKLY, *arguments]) == 2
    assert words in capsys.readouterr().err
