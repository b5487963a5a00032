"""Every command that the README shows under "Use it" runs as it is written, on two ranks of this machine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Use it")[2].partition("\n## ")[0]
COMMANDS = [
    shlex.split(line.removeprefix("$ "), comments=True)
    for block in re.findall(r"```console\n(.*?)```", USE, re.DOTALL)
    for line in block.splitlines()
]
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


def shortened(command: list[str]) -> list[str]:
    """The command with further options, before the script's own."""
    end = command.index("--") if "--" in command else len(command)
    return [*command[:end], *LIMITS.get(command[1], ()), *command[end:]]


def test_the_readme_shows_the_main_commands() -> None:
    shown = {command[1] for command in COMMANDS if command[0] == "autosync"}
    assert {"init", "doctor", "tune", "launch", "profile", "cluster", "simulate", "compare", "emit"} <= shown
    assert {command[0] for command in COMMANDS} == {"autosync", "pip"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_command_runs_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TASK, encoding="utf-8")
    for command in COMMANDS:
        if command[0] == "pip":
            continue
        given = shortened(command)
        if command[1:] == ["init"]:
            # It asks otherwise.
            given += ["--launcher", "local", "--devices", "2", "--yes"]
        ends_by_itself = command[1] == "launch"
        (tmp_path / "train.py").write_text(script(10 if ends_by_itself else 100_000))
        done = subprocess.run(
            (sys.executable, "-m", "autosync.cli", *given[1:]),
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        # Not every winner can be written as settings of stock DDP.
        is_refused = command[1] == "emit" and "stock DDP cannot do this" in done.stdout
        assert done.returncode == 0 or is_refused, (shlex.join(command), done.stdout)
