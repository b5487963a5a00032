"""A script runs as `python` runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autosync.script.program import MainProgram

_SCRIPT = """\
import json, os

def function(argument: int) -> None: ...

os.makedirs("elsewhere")
os.chdir("elsewhere")
told = {"type": function.__annotations__["argument"] is int, "file": __file__, "code": function.__code__.co_filename}
with open(os.path.join(os.path.dirname(__file__), "told.json"), "w") as file:
    json.dump(told, file)
"""


def test_a_script_has_its_own_annotations_and_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    MainProgram(["train.py"]).run()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told == {"type": True, "file": str(path), "code": str(path)}
