"""The notebook is whole, and all its cells run in their order."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tuning.ipynb"


def _cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def _shown(source: str, names: dict[str, Any]) -> object:
    """Run a cell as a notebook does; return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop()
    exec(compile(tree, "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_holds_no_output() -> None:
    assert _cells("markdown")
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in _cells("code"))
    ids = [cell["id"] for kind in ("code", "markdown") for cell in _cells(kind)]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = [_shown("".join(cell["source"]), names) for cell in _cells("code")]
    assert all(value is not None for value in shown)
    tables = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(tables) >= 6
    assert all("<table" in value._repr_html_() for value in tables)
    assert isinstance(names["tuned"].to_frame(), pd.DataFrame)
    assert list(names["tuned"].to_frame()["trial"]) == [0, 1, 2, 3]
    assert (tmp_path / "autosync-studies" / "notebook" / "report.html").is_file()
