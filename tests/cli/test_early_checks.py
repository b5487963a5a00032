"""Misspelt names are reported before a task is run, because that takes long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autosync.near_files import near_path_hint

if TYPE_CHECKING:
    from typing import Any

    Shell = Any  # the class of the fixture in conftest.py, which tests cannot import

FOR_TASK = ("--cluster", "local-2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "task.py", *FOR_TASK, "--proposer", "evolutoin"), "unknown proposer 'evolutoin'"),
        (("tune", "task.py", *FOR_TASK, "--simulator", "timelin"), "unknown simulator 'timelin'"),
        (("tune", "task.py", *FOR_TASK, "--prior", "none.parquet"), "none.parquet: there is no such file"),
        (("tune", "task.py", "--cluster", "none.yaml"), "none.yaml: cannot be read: No such file"),
        (("tune", "tusk.py", *FOR_TASK), "tusk.py: no such file"),
        (("simulate", "none.yaml", "--model", "task.py", *FOR_TASK), "none.yaml: cannot be read: No such file"),
        (("simulate", "ddp", "--model", "task.py", *FOR_TASK, "--simulator", "timelin"), "unknown simulator"),
        (("compare", "task.py", *FOR_TASK, "none.yaml"), "none.yaml: cannot be read: No such file"),
        (("strategy", "show", "none.yaml", "--model", "task.py", *FOR_TASK), "none.yaml: cannot be read"),
        (("strategy", "show", "dddp", "--model", "task.py", *FOR_TASK), "unknown strategy file or preset 'dddp'"),
        (("strategy", "validate", "none.yaml", "--model", "task.py", *FOR_TASK), "none.yaml: cannot be read"),
        (("emit", "none.yaml", "--to", "ddp", "--model", "task.py", *FOR_TASK), "none.yaml: cannot be read"),
        (("draw", "plan", "none.yaml", "--model", "task.py", *FOR_TASK), "none.yaml: cannot be read"),
        (("strategy", "build", "ddp", "tusk.py", *FOR_TASK), "tusk.py: no such file"),
    ],
)
def test_nothing_is_profiled_before(arguments: tuple[str, ...], words: str, shell: Shell) -> None:
    Path("task.py").write_text("raise RuntimeError('it ran')\n", encoding="utf-8")
    assert shell.run(*arguments) == 2
    assert shell.err.startswith("error: ")
    assert words in shell.err
    assert "profiling" not in shell.err


def test_the_file_that_was_meant_is_named(shell: Shell) -> None:
    Path("best.yaml").write_text("", encoding="utf-8")
    assert shell.run("emit", "bset.yaml", "--to", "ddp") == 2
    assert shell.err.rstrip().endswith(f"; {near_path_hint('bset.yaml')}")
    assert "best.yaml" in shell.err
