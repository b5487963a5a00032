"""A script that is killed while it is tuned goes on from its last checkpoint, and nothing of it is left running."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.stock_ddp import train_under_stock_ddp

SCRIPT = Path(__file__).parent / "scripts" / "kept.py"
NUM_STEPS = 400
NUM_KILLS = 20
LIMIT_SECONDS = 200.0


def _processes(words: str) -> list[int]:
    """Return the ids of the processes whose command line has some words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words.encode() in (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def _await_end(words: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while left := _processes(words):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """The weights of each rank after a training under stock DDP that nothing interrupts."""
    folder = tmp_path_factory.mktemp("stock")
    train_under_stock_ddp(SCRIPT, folder / "out", NUM_STEPS)
    return [torch.load(folder / f"out-{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_a_killed_script_goes_on_from_its_checkpoint(
    tmp_path: Path, seed: int, expected: list[dict[str, torch.Tensor]]
) -> None:
    rng = random.Random(seed)
    out = tmp_path / "out"
    # Trials, the proof, and the steps that follow it lie within this range.
    moment, kills_rank = rng.randrange(NUM_STEPS - 20), rng.random() < 0.5
    mark = f"AUTOSYNC_TEST_MARK={tmp_path}"
    words = ("--cluster", "local-2", "--proposer", "random", "--simulator", "analytical", "--trials", "4")
    tuning = subprocess.Popen(
        (
            sys.executable,
            "-P",
            "-m",
            "autosync.cli",
            "tune",
            *words,
            "--retune",
            "--",
            str(SCRIPT),
            str(out),
            str(NUM_STEPS),
        ),
        cwd=tmp_path,
        env={**os.environ, "AUTOSYNC_TEST_MARK": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_step(tmp_path / "out-step", moment, tuning)
        victim = tuning.pid
        if kills_rank:
            victim = rng.choice([one for one in _processes("autosync.script_tuning.rank") if one in _processes(mark)])
        os.kill(victim, signal.SIGKILL)
        assert tuning.wait(LIMIT_SECONDS) != 0
        _await_end(mark)
    finally:
        for one in _processes(mark):
            os.kill(one, signal.SIGKILL)
        tuning.wait()
    train_under_stock_ddp(SCRIPT, out, NUM_STEPS)
    for rank in range(2):
        torch.testing.assert_close(torch.load(f"{out}-{rank}.pt"), expected[rank], rtol=1e-8, atol=1e-8)


def _await_step(file: Path, moment: int, tuning: subprocess.Popen[bytes]) -> None:
    """Wait until the script has made so many steps."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not file.exists() or int(file.read_text() or 0) < moment:
        assert tuning.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
