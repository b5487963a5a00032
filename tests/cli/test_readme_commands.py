"""Every command that the README shows under "Use it" runs as it is written, on two ranks of this machine."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.helpers.shown_commands import ROOT, commands_in, run_autosync

USE = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use it")[2].partition("\n## ")[0]
COMMANDS = commands_in(USE)
SCRIPT = (ROOT / "examples" / "scripts" / "with_torchrun.py").read_text(encoding="utf-8")
LIMITS = {"tune": ("--trials", "3"), "compare": ("--steps", "12", "--budget", "30s")}
"""Options that shorten a command: it runs, and is not judged."""
TASK = """
import runpy
from pathlib import Path

import torch
from torch import nn

from autosync import Task

NAMES = runpy.run_path(str(Path(__file__).with_name("train.py")))


def batch(generator):
    return torch.randint(NAMES["VOCABULARY"], (4, NAMES["LENGTH"]), generator=generator)


def loss(model, tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def task():
    return Task(
        name="train",
        model=NAMES["Model"],
        batch=batch,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
    )
"""
"""A task with the model of the script, so that a bundle made for one fits the other."""


def script(num_steps: int) -> str:
    """A script that makes so many steps, and takes the README's `--epochs`."""
    steps = f'add_argument("--steps", type=int, default={num_steps})'
    return SCRIPT.replace(
        'add_argument("--steps", type=int, default=100)', f'add_argument("--epochs")\n    parser.{steps}'
    )


def test_the_readme_shows_the_main_commands() -> None:
    shown = {one.words[1] for one in COMMANDS}
    assert {"init", "doctor", "tune", "launch", "profile", "cluster", "simulate", "compare", "emit"} <= shown
    assert "\n$ pip install .\n" in USE


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_command_runs_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TASK, encoding="utf-8")
    for one in COMMANDS:
        command = one.words[1]
        given = one.with_options(*LIMITS.get(command, ()))
        if one.words[1:] == ("init",):
            # It asks otherwise.
            given += ("--launcher", "local", "--devices", "2", "--yes")
        (tmp_path / "train.py").write_text(script(10 if command == "launch" else 100_000))
        done = run_autosync(given, tmp_path)
        # Not every winner can be written as settings of stock DDP.
        is_refused = command == "emit" and "stock DDP cannot do this" in done.stdout + done.stderr
        assert done.returncode == 0 or is_refused, (shlex.join(given), done.stdout, done.stderr)
