"""The pages of docs/extending are followed to the letter: files are written, installed, tested and used."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "extending"
AUTOSYNC = str(Path(sys.executable).with_name("autosync"))
NAMES = ("launcher", "preset", "proposer", "simulator", "synchroniser")
# Whether a page is followed to its end; measuring, which comes last, is slow.
QUICK = {"preset": True, "simulator": True, "synchroniser": False}
INSTALL = (
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-deps",
    "--no-build-isolation",
    "--no-index",
    "--target",
    "site",
    ".",
)


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "site"), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "is_whole"),
    [
        *QUICK.items(),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in NAMES if not QUICK.get(name)),
    ],
)
def test_the_page_works_step_by_step(name: str, is_whole: bool, tmp_path: Path) -> None:
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    files = re.findall(r"```\w+\n# (\S+)\n(.*?)```", page, re.DOTALL)
    assert "pyproject.toml" in dict(files)
    for file, text in files:
        (tmp_path / file).write_text(text, encoding="utf-8")
    _run(tmp_path, sys.executable, *INSTALL)
    (test,) = tmp_path.glob("test_*.py")
    assert "1 passed" in _run(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
    commands = re.findall(r"^\$ autosync (.*)$", page, re.MULTILINE)
    if not is_whole:
        commands = commands[: next(place for place, command in enumerate(commands) if command.startswith("tune "))]
    assert commands
    for command in commands:
        assert _run(tmp_path, AUTOSYNC, *shlex.split(command))
    if name == "synchroniser" and is_whole:
        tried = [json.loads(line) for line in (tmp_path / "tried.jsonl").read_text(encoding="utf-8").splitlines()]
        assert any('"relay"' in json.dumps(record.get("strategy")) and record.get("measurement") for record in tried)


def test_the_index_lists_every_page() -> None:
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert {f"{name}.md" for name in NAMES} <= set(re.findall(r"\]\((\w+\.md)\)", index))
