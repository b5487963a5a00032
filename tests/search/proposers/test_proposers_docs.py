"""docs/proposers.md: its example is a proposer, and its test is one that passes."""

import re
import runpy
from pathlib import Path

import pytest

from autosync.search.proposers.catalogue import PROPOSERS

PAGE = (Path(__file__).parents[3] / "docs" / "proposers.md").read_text(encoding="utf-8")


def test_the_example_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in files] == ["climbing.py", "test_climbing.py"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = runpy.run_path(str(tmp_path / "test_climbing.py"))
    found["test_climb_is_a_proposer"]()


def test_the_entry_point_is_where_proposers_are_looked_for() -> None:
    assert f'entry-points."autosync.{PROPOSERS.what}s"' in PAGE
